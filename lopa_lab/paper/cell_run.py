"""CellRun: the scores and records of a cell. It is kept as a file; a cell that has one is not run again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from pydantic import BaseModel, ConfigDict, ValidationError

from lopa_lab.evaluation.harness_cli import TASKS
from lopa_lab.paper.measured_model import MeasuredModel, ProblemRecord
from lopa_lab.paper.tasks import Benchmark
from lopa_lab.records.points_log import check_unchanged
from lopa_lab.records.record import replace_file
from lopa_ray.errors import SettingsError
from lopa_ray.text_input import read_text

FOLDERS = ("benchmarks", "gsm8k", "humaneval", "mbpp", "minerva_math")
"""Folders of the harness that have the tasks: an index of all takes ten seconds."""


class CellRun(BaseModel):
    """The results of a cell's run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked: dict[str, Any]
    """Task, options and all settings: a file with others is not this cell's."""
    made_with: dict[str, Any]
    """Machine, versions, commit and command."""
    scores: dict[str, Any]
    """All that the harness reports of the task, from 0 to 1."""
    metric: str
    """The one in `scores` that the paper reports."""
    records: tuple[ProblemRecord, ...]

    @classmethod
    def read(cls, path: Path, asked: dict[str, Any] | None = None) -> CellRun | None:
        """The run in a file; None if there is none. Raises SettingsError if it is not a run of what is asked."""
        if not path.exists():
            return None
        try:
            run = cls.model_validate_json(read_text(path))
        except ValidationError as error:
            raise SettingsError(
                f"{path} is damaged, or another version wrote it: {error}; remove it"
            ) from None
        if asked is not None:
            check_unchanged(run.asked, asked, path)
        return run

    def write(self, path: Path) -> None:
        """Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, self.model_dump_json(indent=1))

    @property
    def score_error(self) -> float | None:
        """The harness's standard error of the score, in percent; None where it has none."""
        name, _, of_filter = self.metric.partition(",")
        error = self.scores.get(f"{name}_stderr,{of_filter}")
        return 100 * error if isinstance(error, float) else None

    @property
    def num_branches(self) -> int:
        """Branches of a step, the anchor among them."""
        return int(self.asked["settings"]["decode"].get("num_branches", 1))

    @property
    def figures(self) -> dict[str, float | None]:
        """Figures by the names of `cells.METRICS`, and `tpf_to_eos`; None for what cannot be computed.

        As the authors count, all decided tokens count; for `tpf_to_eos`, tokens up to and including EOS.
        """
        speeds = [each.published_tps for each in self.records if each.published_tps is not None]
        speeds.sort(reverse=True)
        steps = sum(each.steps for each in self.records)
        return {
            "score": 100 * self.scores[self.metric],
            "tpf": sum(sum(each.fills) for each in self.records) / steps if steps else None,
            "tpf_to_eos": sum(each.tokens for each in self.records) / steps if steps else None,
            "avg_tps": _mean(speeds),
            "max_tps": _mean(speeds[:1]),
            "top10_tps": _mean(speeds[:10]),
            "latency_s": _mean([each.seconds for each in self.records if each.seconds is not None]),
        }


def evaluate(model: MeasuredModel, benchmark: Benchmark, limit: int | None) -> tuple[dict[str, Any], str]:
    """The harness's scores of a benchmark over all problems, or the first `limit` of each of its tasks; and the name
    of the score that the paper reports. The model has the records.

    Raises SettingsError where code may not be executed, and where data cannot be loaded; what ends a request.
    """
    task = (benchmark.chat if model.has_chats else None) or benchmark.text
    try:
        results = simple_evaluate(
            model=model,
            tasks=[task.spec],
            num_fewshot=benchmark.shots,
            limit=limit,
            log_samples=False,
            apply_chat_template=task is benchmark.chat and model.has_chats,
            task_manager=_task_manager(),
            confirm_run_unsafe_code=benchmark.runs_code,
        )
    except OSError as error:  # datasets and evaluate raise several, without a Hub
        raise SettingsError(
            f"{benchmark.title}: the harness cannot load its data or metric: {error}"
        ) from error
    scores: dict[str, Any] = results["results"][task.name]
    names = [name for name in scores if benchmark.metric in (name, name.partition(",")[0])]
    return scores, names[0]


@cache
def _task_manager() -> TaskManager:
    harness = Path(lm_eval.__file__).parent / "tasks"
    return TaskManager(include_path=[TASKS, *(harness / name for name in FOLDERS)], include_defaults=False)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
