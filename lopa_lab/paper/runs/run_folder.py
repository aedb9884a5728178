"""RunFolder: the problems that a run has decoded so far. A killed run continues from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.records.differences import first_difference
from lopa_lab.records.files import replace_file
from lopa_ray.errors import SettingsError


class RunFolder:
    """A folder with `run.json`, which has the settings of all records, and `records.jsonl`, a line per problem."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Begin a run in `path`, or continue the run that is there.

        Raises SettingsError if the run there has another `identity`, or its files cannot be read.
        """
        self.path = path
        self._records_path = path / "records.jsonl"
        self._state = self._begin_or_resume(json.loads(json.dumps(identity)))
        self.records: dict[str, ProblemRecord] = {record.problem_id: record for record in self._read()}
        """By problem, in the order in which they ended."""

    @property
    def started(self) -> datetime:
        """When the run was begun, in UTC."""
        return datetime.fromisoformat(self._state["started"])

    def _begin_or_resume(self, identity: dict[str, Any]) -> dict[str, Any]:
        state_path = self.path / "run.json"
        if not state_path.exists():
            if self._records_path.exists():
                raise SettingsError(
                    f"--output: {self.path} has records without run.json; choose another folder"
                )
            state = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "identity": identity}
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                replace_file(state_path, json.dumps(state, indent=1))
            except OSError as error:
                raise SettingsError(f"--output: cannot write into {self.path}: {error.strerror}") from None
            return state
        try:
            state = json.loads(state_path.read_text(encoding="utf-8"))
            before = state["identity"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"--output: {state_path} cannot be read ({error!r}); remove the folder"
            ) from None
        changed = first_difference(before, identity)
        if changed is not None:
            raise SettingsError(
                f"--output: the run in {self.path} was begun with other settings ({changed}); restore that to "
                "continue, choose another folder, or remove this one"
            )
        return dict(state)

    def _read(self) -> list[ProblemRecord]:
        if not self._records_path.exists():
            return []
        data = self._records_path.read_bytes()
        whole, _, torn = data.rpartition(b"\n")
        if torn:  # the process ended in the middle of a line
            with self._records_path.open("r+b") as file:
                file.truncate(len(data) - len(torn))
        try:
            return [ProblemRecord.model_validate_json(line) for line in whole.splitlines()]
        except ValidationError as error:
            raise SettingsError(
                f"--output: {self._records_path} is damaged, or another version wrote it: {error}; remove the folder"
            ) from None

    def append(self, record: ProblemRecord) -> None:
        """Keep a problem's record, in the place of an earlier one."""
        self.records[record.problem_id] = record
        with self._records_path.open("ab") as file:
            file.write(record.model_dump_json().encode() + b"\n")

    def compact(self) -> None:
        """Leave one line per problem."""
        replace_file(
            self._records_path,
            "".join(record.model_dump_json() + "\n" for record in self.records.values()),
        )
