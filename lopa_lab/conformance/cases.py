"""Recorded cases, and the verdicts on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lopa_ray.errors import LopaError, SettingsError
from lopa_ray.text_input import BYTE_ORDER_MARK, check_encoding

Status = Literal["passed", "differs", "not supported", "error", "skipped"]


class MalformedCaseError(LopaError):
    """A row does not follow the format."""


class UnsupportedCaseError(LopaError):
    """A row is well-formed, but records something that is not implemented here."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as recorded; `round` is 1-based, 0 for the case as a whole."""

    what: str
    round: int
    expected: object
    got: object


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a case replayed as recorded. `differences` are in the order of events.

    `by_design`: a case that is not supported, and is not going to be.
    """

    file: Path
    line: int
    id: str
    kind: str
    status: Status
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    by_design: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values: dict[str, Any] = {
            "id": self.id,
            "file": str(self.file),
            "line": self.line,
            "kind": self.kind,
            "status": self.status,
        }
        if self.reason:
            values["reason"] = self.reason
        if self.by_design:
            values["by_design"] = True
        if self.differences:
            values["first"] = asdict(self.differences[0])
            values["differs"] = list(dict.fromkeys(difference.what for difference in self.differences))
        return values


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a file of recorded cases. `kind` is "forward", a decoder's or a sampler's name."""

    file: Path
    line: int
    id: str
    kind: str
    row: dict[str, Any]
    model: str
    lora: str | None

    def verdict(self, status: Status, reason: str = "", differences: Sequence[Difference] = ()) -> Verdict:
        """A verdict on this case."""
        return Verdict(self.file, self.line, self.id, self.kind, status, reason, tuple(differences))


# Reading


def read_cases(path: Path) -> list[Case | Verdict]:
    """All rows of a file, in order; a verdict stands for each row that cannot be read.

    Raises SettingsError if there is no such file.
    """
    try:
        content = path.read_bytes()
        check_encoding(content)
    except OSError as error:
        raise SettingsError(f"cannot read cases {path}: {error.strerror}; give a JSONL file") from None
    except ValueError as error:
        raise SettingsError(f"cannot read cases {path}: {error}") from None
    lines = content.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    return [_read_case(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _read_case(path: Path, number: int, line: bytes) -> Case | Verdict:
    name, kind = f"{path.name}:{number}", "unknown"
    try:
        row = json.loads(line)  # NaN may be recorded
        if not isinstance(row, dict):
            raise MalformedCaseError(f"a case is a JSON object, got {type(row).__name__}")
        name = str(row.get("id", name))
        kind = _kind_of(row)
        lora = row.get("lora")
        if lora is not None:
            lora = _folder(row, "lora")
        return Case(path, number, name, kind, row, _folder(row, "model"), lora)
    except (ValueError, RecursionError) as error:
        return Verdict(path, number, name, kind, "error", f"not JSON: {error}")
    except MalformedCaseError as error:
        return Verdict(path, number, name, kind, "error", str(error))


def _kind_of(row: dict[str, Any]) -> str:
    """The kind of a row, by its keys: files do not name it."""
    if "kind" in row:
        return str(row["kind"])
    settings = row.get("settings")
    if isinstance(settings, dict) and "algorithm" in settings:
        return str(settings["algorithm"])
    if isinstance(row.get("steps"), list):
        return "forward"
    raise MalformedCaseError(
        "no kind of case has these keys; needed: settings.algorithm, kind, or a list of steps"
    )


def _folder(row: dict[str, Any], key: str) -> str:
    name = row.get(key)
    if not isinstance(name, str) or not name or name in (".", "..") or Path(name).name != name:
        raise MalformedCaseError(f"{key}: got {name!r}; allowed: the name of a folder")
    return name


def token_ids(row: dict[str, Any], key: str) -> list[int]:
    """A list of ids. Raises MalformedCaseError."""
    ids = row.get(key)
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise MalformedCaseError(f"{key}: got {abbreviate(ids)}; allowed: a list of token ids")
    return ids


def abbreviate(value: object) -> str:
    """A value as it is shown in messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
