"""Runs that an earlier command has finished."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.runs.run import FinishedRun
from lopa_lab.paper.runs.run_info import RunInfo


def read_finished(folder: Path) -> FinishedRun | None:
    """The run whose report and records are in `folder`; None if there is none, or another version wrote it."""
    try:
        info = RunInfo.model_validate(json.loads((folder / "report.json").read_text(encoding="utf-8"))["run"])
        lines = (folder / "records.jsonl").read_text(encoding="utf-8").split("\n")
        records = [ProblemRecord.model_validate_json(line) for line in lines if line]
    except (FileNotFoundError, KeyError, ValidationError):
        return None
    return FinishedRun(folder, info, tuple(records[: info.limit]))
