"""PointsLog: the points that a run has measured so far. An interrupted run continues from them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from lopa_lab.records.record import Value, now
from lopa_ray.errors import SettingsError


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file that a killed process may have left in the middle of one; none if there is no file.

    What is there of that line is removed from the file, so that others can be appended. Raises OSError.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole, _, torn = data.rpartition(b"\n")
    if torn:
        with path.open("r+b") as file:
            file.truncate(len(data) - len(torn))
    return whole.splitlines()


def check_unchanged(before: Any, now: Any, path: Path) -> None:
    """Check that a run may go on with what is in `path`. Raises SettingsError if it was begun with other settings."""
    changed = first_difference(before, now)
    if changed is not None:
        raise SettingsError(
            f"--output: the run in {path} has other settings ({changed}); restore them to continue, name another "
            f"folder, or remove {path}"
        )


def first_difference(before: Any, now: Any, name: str = "") -> str | None:
    """The first difference of two JSON values, in words; None if there is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            difference = first_difference(before.get(key), now.get(key), f"{name}.{key}" if name else key)
            if difference is not None:
                return difference
        return None
    return None if before == now else f"{name}: {json.dumps(before)} then, {json.dumps(now)} now"


Point: TypeAlias = dict[str, Value]
"""Parameter → value."""


class MeasuredPoint(BaseModel):
    """A point, and what was measured there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    point: Point
    data: dict[str, Any]


class PointsLog:
    """A file of JSON lines: the setup of the run, and then a line per measured point."""

    def __init__(self, path: Path, setup: BaseModel) -> None:
        """Begin a run in `path`, or continue the run that is there.

        Raises SettingsError if the run there has another setup, or the file can be neither read nor written.
        """
        self._path = path
        self._points: dict[str, MeasuredPoint] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = whole_lines(path)
            if not lines:
                self.started = now()
                """When the run was begun, in UTC."""
                self._append({"started": self.started.isoformat(), "setup": setup.model_dump(mode="json")})
                return
        except OSError as error:
            raise SettingsError(
                f"--output: cannot use {path}: {error.strerror}; name another folder"
            ) from None
        try:
            head = json.loads(lines[0])
            before, self.started = head["setup"], datetime.fromisoformat(head["started"])
            measured = [MeasuredPoint.model_validate_json(line) for line in lines[1:]]
        except (ValueError, KeyError, TypeError) as error:  # pydantic's ValidationError is a ValueError
            raise SettingsError(
                f"--output: {path} is damaged, or another version wrote it ({error!r}); remove it"
            ) from None
        check_unchanged(before, setup.model_dump(mode="json"), path)
        self._points = {_key(point.point): point for point in measured}

    def _append(self, value: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")

    def __contains__(self, point: Point) -> bool:
        return _key(point) in self._points

    def __getitem__(self, point: Point) -> MeasuredPoint:
        return self._points[_key(point)]

    def append(self, measured: MeasuredPoint) -> None:
        """Keep a point. Raises ValueError for data that JSON has no word for, such as NaN."""
        self._append(measured.model_dump(mode="python"))
        self._points[_key(measured.point)] = measured


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)
