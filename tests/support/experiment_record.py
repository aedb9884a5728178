"""Records of experiments, made by hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from lopa_lab.experiments.run.experiment import ExperimentRecord
from lopa_lab.experiments.run.setup import Setup
from lopa_lab.records.machine import Machine
from lopa_lab.records.points_log import MeasuredPoint

MACHINE = Machine(
    cpu="a processor", cores=2, memory_bytes=None, accelerators=(), os="an OS", python="3.11", packages={}
)


def experiment_record(
    name: str, problems: int, *points: tuple[dict[str, Any], dict[str, Any]]
) -> ExperimentRecord:
    """The record of so many problems with the given points and their data."""
    return ExperimentRecord(
        experiment=name,
        command=("lopa", "experiment", name),
        started=datetime(2026, 1, 1, tzinfo=UTC),
        machine=MACHINE,
        version="0",
        commit=None,
        setup=Setup(problems=problems, seed=0, problem_texts="", model="demo", weights=None, settings={}),
        points=tuple(MeasuredPoint(point=point, data=data) for point, data in points),
    )


def values(text: str) -> str:
    """A finding without its intervals."""
    return re.sub(r" \[[^\]]*\]", "", text)
