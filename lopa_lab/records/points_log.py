"""PointsLog: the points that a run has measured so far. An interrupted run continues from them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from lopa_lab.records.differences import first_difference
from lopa_lab.records.record import Value, now
from lopa_ray.errors import SettingsError

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
            lines = self._whole_lines()
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
        changed = first_difference(before, setup.model_dump(mode="json"))
        if changed is not None:
            raise SettingsError(
                f"--output: the run in {path} has other settings ({changed}); restore them to continue, name another "
                "folder, or remove the file"
            )
        self._points = {_key(point.point): point for point in measured}

    def _whole_lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        data = self._path.read_bytes()
        whole, _, torn = data.rpartition(b"\n")
        if torn:  # the process ended in the middle of a line
            with self._path.open("r+b") as file:
                file.truncate(len(data) - len(torn))
        return whole.splitlines()

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
