"""A run of a benchmark: decode what is not decoded yet, grade, report."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.command_line.progress import ShownTask
from lopa_lab.paper.runs.decode_problems import decode_problems
from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.runs.run_folder import RunFolder
from lopa_lab.paper.runs.run_info import RunInfo
from lopa_lab.paper.tasks.benchmarks import ASKED_AS_TEXT, open_benchmark
from lopa_lab.paper.tasks.sandbox import check_sandbox
from lopa_lab.paper.tasks.task import BenchmarkProblem, PaperTask
from lopa_lab.records.machine import Machine, checkout_commit
from lopa_ray import __version__
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.text.tokenizer import require_tokenizer

SECONDS_BETWEEN_LINES = 30.0
"""Time between two lines of progress in logs."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run that are not part of its configuration."""

    config_name: str
    local: bool = False
    """Decode in this process, without Ray."""
    data: Path | None = None
    shots_data: Path | None = None
    chat: bool | None = None
    """None: where the checkpoint has a chat template, and the benchmark is asked as a chat."""
    add_bos: bool = False
    limit: int | None = None
    concurrency: int = 1
    allow_code_execution: bool = False


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run: its description and its results."""

    folder: Path
    info: RunInfo
    records: tuple[ProblemRecord, ...]

    @classmethod
    def read(cls, folder: Path) -> FinishedRun | None:
        """The run whose report and records are in `folder`; None if there is none, or another version wrote it."""
        try:
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
            info = RunInfo.model_validate(report["run"])
            lines = (folder / "records.jsonl").read_text(encoding="utf-8").split("\n")
            records = [ProblemRecord.model_validate_json(line) for line in lines if line]
        except (FileNotFoundError, KeyError, ValidationError):
            return None
        return cls(folder, info, tuple(records[: info.limit]))


def with_concurrency(config: Config, concurrency: int) -> Config:
    """The configuration of an engine that has so many requests in flight."""
    return config.replace(model=config.model.replace(max_num_seqs=concurrency))


def run_benchmark(
    engine: Engine, name: str, config: Config, output: Path, options: RunOptions
) -> FinishedRun:
    """Decode and grade into the folder `output`, going on with what is there. `config` has the decode settings.

    Raises SettingsError, and what ends a request.
    """
    chat = options.chat
    if chat is None:
        chat = require_tokenizer(engine.tokenizer).has_chat_template and name not in ASKED_AS_TEXT
    if chat and options.add_bos:
        raise SettingsError("--add-bos goes before plain text, and this run uses chats; add --no-chat")
    with ShownTask(f"Reading the problems of {name}"):
        task = open_benchmark(name, data=options.data, shots_data=options.shots_data, chat=chat)
        if task.runs_code and options.allow_code_execution:
            check_sandbox()
        problems = task.problems(options.limit)
    machine = Machine.here(engine.config.model.device)
    told: dict[str, Any] = {
        "task": name,
        "concurrency": options.concurrency,
        "chat": chat,
        "settings": {**engine.config.as_dict(), "decode": config.decode.model_dump(mode="json")},
        "versions": {"lopa-ray": __version__, **task.versions()},
    }
    identity = {
        **told,
        "add_bos": options.add_bos,
        "local": options.local,
        # Times of different machines cannot be compared.
        "machine": machine.model_dump(mode="json") if options.concurrency == 1 else None,
    }
    folder = RunFolder(output, identity)
    waiting = [problem for problem in problems if problem.problem_id not in folder.records]
    records = decode_problems(
        engine, waiting, config.decode, concurrency=options.concurrency, add_bos=options.add_bos
    )
    for record in _shown(records, f"{task.title}: decoding", len(waiting)):
        folder.append(record)
    if options.allow_code_execution or not task.runs_code:
        graded = grade_records(task, problems, dict(folder.records))
        for record in _shown(graded, f"{task.title}: grading", len(problems)):
            folder.append(record)
        folder.compact()
    info = RunInfo(
        **told,
        title=task.title,
        shots=task.shots,
        metric=task.metric,
        config_name=options.config_name,
        model=str(engine.config.model.path),
        limit=options.limit,
        problems=task.size,
        machine=machine,
        command=("lopa", *sys.argv[1:]),
        started=folder.started,
        commit=checkout_commit(),
    )
    return FinishedRun(output, info, tuple(folder.records[problem.problem_id] for problem in problems))


def grade_records(
    task: PaperTask, problems: Sequence[BenchmarkProblem], records: Mapping[str, ProblemRecord]
) -> Iterator[ProblemRecord]:
    """The records of `problems` that have no scores yet, with scores, one after the other.

    Programs are executed as many at a time as there are CPUs, each of them in a process of its own. Answers that are
    no programs are graded in this thread.
    """
    ungraded = [problem for problem in problems if records[problem.problem_id].scores is None]

    def grade(problem: BenchmarkProblem) -> ProblemRecord:
        record = records[problem.problem_id]
        return record.model_copy(update={"scores": task.grade(problem, problem.cut(record.text))})

    if not task.runs_code:
        yield from map(grade, ungraded)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(grade, ungraded)


def _shown(records: Iterable[ProblemRecord], doing: str, total: int) -> Iterator[ProblemRecord]:
    """The same records, with a bar of how far it is; a line now and then where stderr is no terminal."""
    said = time.monotonic()
    with ShownTask(doing, total, "problems") as task:
        for done, record in enumerate(records, start=1):
            yield record
            task.advance()
            if not task.visible and time.monotonic() - said > SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                print(f"{doing} {done} of {total}", file=sys.stderr, flush=True)
