"""RunFolder: the problems that a run has decoded so far. A killed run continues from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.records.points_log import check_unchanged, whole_lines
from lopa_lab.records.record import now, replace_file
from lopa_ray.errors import SettingsError


class RunFolder:
    """A folder with `run.json`, which has the settings of all records, and `records.jsonl`, a line per problem."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Begin a run in `path`, or continue the run that is there.

        Raises SettingsError if the run there has another `identity`, or its files cannot be read.
        """
        state_path, self._records_path = path / "run.json", path / "records.jsonl"
        identity = json.loads(json.dumps(identity))
        if not state_path.exists():
            self._begin(state_path, identity)
        try:
            state = json.loads(state_path.read_text(encoding="utf-8"))
            before, self.started = state["identity"], datetime.fromisoformat(state["started"])
            """When the run was begun, in UTC."""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"--output: {state_path} cannot be read ({error!r}); remove the folder"
            ) from None
        check_unchanged(before, identity, path)
        try:
            kept = map(ProblemRecord.model_validate_json, whole_lines(self._records_path))
            self.records = {record.problem_id: record for record in kept}
            """By problem, in the order in which they ended."""
        except ValidationError as error:
            raise SettingsError(
                f"--output: {self._records_path} is damaged, or another version wrote it: {error}; remove the folder"
            ) from None

    def _begin(self, state_path: Path, identity: Any) -> None:
        if self._records_path.exists():
            raise SettingsError(
                f"--output: {state_path.parent} has records without run.json; choose another folder"
            )
        try:
            state_path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(
                state_path, json.dumps({"started": now().isoformat(), "identity": identity}, indent=1)
            )
        except OSError as error:
            raise SettingsError(
                f"--output: cannot write into {state_path.parent}: {error.strerror}"
            ) from None

    def append(self, record: ProblemRecord) -> None:
        """Keep a problem's record, in the place of an earlier one."""
        self.records[record.problem_id] = record
        with self._records_path.open("ab") as file:
            file.write(record.model_dump_json().encode() + b"\n")

    def compact(self) -> None:
        """Leave one line per problem."""
        replace_file(
            self._records_path, "".join(record.model_dump_json() + "\n" for record in self.records.values())
        )
