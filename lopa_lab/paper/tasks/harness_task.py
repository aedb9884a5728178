"""HarnessTask: a benchmark as lm-evaluation-harness defines it, from its prompts to its scores."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lopa_lab.paper.tasks.benchmark_data import BenchmarkData, DataRow
from lopa_lab.paper.tasks.task import BenchmarkProblem, PaperTask
from lopa_ray.errors import SettingsError
from lopa_ray.extras import install_advice

FEWSHOT_SEED = 1234
"""The harness's own default for the choice of shots."""

EVALUATION, SHOTS = "test", "train"
"""Splits of data that is read from files."""


@dataclass(frozen=True, slots=True)
class HarnessBenchmark:
    """The harness's task of a benchmark, and the paper's prompt for it."""

    title: str
    tasks: tuple[str, ...]
    """Names in the harness; their problems follow each other."""
    shots: int
    folder: str | None
    """The one of the harness's folders that has the tasks; None: this project's."""
    keys: tuple[str, str]
    """Keys of a row: the question, and what an answer is compared with."""
    metric: str
    """`METRIC`, or `METRIC,FILTER` where the task has several filters."""
    shots_from: str | None = None
    """Where the shots come from if a file of problems is given, and none of shots: None is the task itself."""


BENCHMARKS = {
    "gsm8k": HarnessBenchmark(
        "GSM8K",
        ("gsm8k",),
        4,
        "gsm8k",
        ("question", "answer"),
        "exact_match,flexible-extract",
        "the same file",
    ),
    "math": HarnessBenchmark(
        "MATH",
        tuple(
            f"minerva_math_{subject}"
            for subject in (
                "algebra",
                "counting_and_prob",
                "geometry",
                "intermediate_algebra",
                "num_theory",
                "prealgebra",
                "precalc",
            )
        ),
        4,
        "minerva_math",
        ("problem", "solution"),
        "exact_match",
    ),
    "word_problems": HarnessBenchmark(
        "word problems", ("word_problems",), 0, None, ("question", "result"), "exact_match"
    ),
}
"""The paper's shots (Table 5). Of GSM8K's two filters the paper does not name the one that it reports; both are
reported here."""


class HarnessTask(PaperTask):
    """One of `BENCHMARKS`."""

    def __init__(
        self, name: str, *, data: Path | None = None, shots_data: Path | None = None, chat: bool = False
    ) -> None:
        """`data` is a JSON Lines file of problems in place of the task's own, `shots_data` one of solved examples.

        Without `shots_data` a task whose shots are drawn from its training split draws them from `data`, never the
        problem itself. `chat` makes chats, with the shots as turns. Whether the files can be given together is for
        `check_benchmark`. Raises SettingsError for files that cannot be read, rows that lack a key, too few rows for
        the shots, and a package that is missing.
        """
        benchmark = BENCHMARKS[name]
        self.name, self.title = name, benchmark.title
        self.shots, self.metric = benchmark.shots, benchmark.metric
        self._benchmark, self._chat = benchmark, chat
        self._data = None if data is None else _read(benchmark, data, "--data")
        self._shots_data = None if shots_data is None else _read(benchmark, shots_data, "--shots-data")
        if self._data is not None and benchmark.shots_from is not None:
            _check_shots(benchmark, self._data, self._shots_data)
        self._tasks = _load_tasks(benchmark, self._data, self._shots_data)
        for task in self._tasks:
            task.set_config("num_fewshot", benchmark.shots)
            task.set_fewshot_seed(FEWSHOT_SEED)

    def problems(self, limit: int | None = None) -> list[BenchmarkProblem]:
        problems: list[BenchmarkProblem] = []
        for task, rows in self._rows:
            for index, row in enumerate(rows):
                if limit is not None and len(problems) == limit:
                    return problems
                problems.append(self._problem(task, index, row))
        return problems

    @property
    def size(self) -> int:
        return sum(len(rows) for _, rows in self._rows)

    @cached_property
    def _rows(self) -> list[tuple[Any, Any]]:
        """(task, its rows as the harness has processed them), which it repeats at every access."""
        return [(task, task.eval_docs) for task in self._tasks]

    def _problem(self, task: Any, index: int, row: Mapping[str, Any]) -> BenchmarkProblem:
        from lopa_lab.evaluation.chat_prompt import ChatPrompt

        context = task.fewshot_context(
            row,
            self.shots,
            apply_chat_template=self._chat,
            fewshot_as_multiturn=self._chat,
            chat_template=ChatPrompt.of_history if self._chat else None,
            gen_prefix=task.doc_to_prefix(row),
        )
        until = task.config.generation_kwargs.get("until") or ()
        chat = isinstance(context, ChatPrompt)
        return BenchmarkProblem(
            f"{task.task_name}/{index}",
            context.messages if chat else context,
            context.prefix if chat else "",
            (until,) if isinstance(until, str) else tuple(until),
            {**row, "_task": task.task_name},
        )

    def grade(self, problem: BenchmarkProblem, answer: str) -> dict[str, float]:
        """See `PaperTask`. To be called in the main thread: the harness's comparison of formulas sets alarms."""
        from lm_eval.api.instance import Instance

        row = dict(problem.row)
        name = row.pop("_task")
        task = next(task for task in self._tasks if task.task_name == name)
        instance = Instance("generate_until", row, ("", {}), 0, (name, 0, 1), resps=[answer])
        scores: dict[str, float] = {}
        filters = task._filters  # there is no public way to filter one answer
        for ensemble in filters:
            ensemble.apply([instance])
            for metric, score in task.process_results(row, [instance.filtered_resps[ensemble.name]]).items():
                scores[metric if len(filters) == 1 else f"{metric},{ensemble.name}"] = float(score)
        return scores

    def versions(self) -> dict[str, str]:
        versions = {name: version(name) for name in ("lm_eval", "datasets")}
        for task in self._tasks:
            versions[f"task {task.task_name}"] = str(task.VERSION)
        if self.name == "math":
            versions |= {name: version(name) for name in ("math-verify", "sympy")}
        versions["data"] = self._data_version()
        if self._shots_data is not None:
            versions["shots"] = self._shots_data.version
        elif self._data is not None and self._benchmark.shots_from is not None:
            versions["shots"] = self._benchmark.shots_from
        return versions

    def _data_version(self) -> str:
        if self._data is not None:
            return self._data.version
        task, split = self._rows[0]
        if task.config.custom_dataset is not None:
            return "of the package"
        revisions = {
            url.partition("@")[2].partition("/")[0]
            for url in (split.info.download_checksums or {})
            if "@" in url
        }
        return f"{task.config.dataset_path} {' '.join(sorted(revisions)) or split._fingerprint}"


def _read(benchmark: HarnessBenchmark, file: Path, option: str) -> BenchmarkData:
    """Raises SettingsError."""

    def fault(row: DataRow) -> str | None:
        blank = [key for key in benchmark.keys if not row[key].strip()]
        if blank:
            return f"{blank[0]!r}: got {row[blank[0]]!r}; allowed: text that is not blank"
        if benchmark.folder == "minerva_math" and "\\boxed" not in row["solution"]:
            return "'solution': got no \\boxed; allowed: a solution whose result is in \\boxed{}"
        return None

    data = BenchmarkData.read(file, option=option)
    data.check(lambda row: dict.fromkeys(benchmark.keys, str), fault)
    return data


def _check_shots(benchmark: HarnessBenchmark, data: BenchmarkData, shots_data: BenchmarkData | None) -> None:
    """Check that there are shots for every problem. Raises SettingsError."""
    if shots_data is not None:
        if len(shots_data.rows) < benchmark.shots:
            raise SettingsError(
                f"{shots_data.option}: {shots_data.source}: got {len(shots_data.rows)} rows; allowed: at least "
                f"{benchmark.shots}, the shots of {benchmark.title}"
            )
        return
    # The harness draws one row more than it needs, and drops rows that equal the problem.
    (_, copies), *_ = Counter(tuple(row[key] for key in benchmark.keys) for row in data.rows).most_common(1)
    if len(data.rows) < benchmark.shots + copies:
        got = f"{len(data.rows)} rows" + (f", {copies} of them the same" if copies > 1 else "")
        raise SettingsError(
            f"{data.option}: {data.source}: got {got}; allowed: at least {benchmark.shots + 1} different ones, a "
            f"problem and its {benchmark.shots} shots, or shots from a file with --shots-data"
        )


def _load_tasks(
    benchmark: HarnessBenchmark, data: BenchmarkData | None, shots_data: BenchmarkData | None
) -> list[Any]:
    specs: list[str | dict[str, Any]] = list(benchmark.tasks)
    if data is not None:
        specs = [_with_rows(benchmark, data, shots_data)]
    try:
        import datasets
        from lm_eval import tasks as harness_tasks

        from lopa_lab.evaluation.harness_cli import TASKS

        logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about intended settings
        datasets.disable_progress_bars()
        folder = TASKS
        if benchmark.folder is not None:
            folder = Path(harness_tasks.__file__).parent / benchmark.folder
        # The index of all of the harness's tasks would take ten seconds.
        manager = harness_tasks.TaskManager(include_path=str(folder), include_defaults=False)
        return list(manager.load(specs)["tasks"].values())
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error}; {install_advice('eval')}") from None
    except Exception as error:
        # The harness's functions raise many types for a row, and `datasets` for a Hub that cannot be reached.
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if data is not None:
            raise SettingsError(
                f"{data.option}: {data.source}: the harness cannot make problems of {benchmark.title} from these rows "
                f"({reason})"
            ) from error
        raise SettingsError(
            f"{benchmark.title}: the problems cannot be loaded from the Hub ({reason}); name a file of them with --data"
        ) from error


def _with_rows(
    benchmark: HarnessBenchmark, data: BenchmarkData, shots_data: BenchmarkData | None
) -> dict[str, Any]:
    """The first of the tasks, over these rows: the harness puts what a group says on top of a task."""
    splits = {EVALUATION: data}
    spec: dict[str, Any] = {
        "task": benchmark.tasks[0],
        "dataset_path": None,
        "dataset_name": None,
        "dataset_kwargs": None,
        "training_split": None,
        "validation_split": None,
        "test_split": EVALUATION,
    }
    if benchmark.shots_from is not None:
        spec["fewshot_split"] = EVALUATION
        if shots_data is not None:
            splits[SHOTS] = shots_data
            spec |= {"training_split": SHOTS, "fewshot_split": SHOTS}

    def load(**_metadata: Any) -> Any:
        from datasets import Dataset, DatasetDict

        # Only the keys that the task reads: a column cannot be made where rows differ in the type of another key.
        return DatasetDict(
            {
                split: Dataset.from_list([{key: row[key] for key in benchmark.keys} for row in data.rows])
                for split, data in splits.items()
            }
        )

    return {"group": "of files", "task": [spec | {"custom_dataset": load}]}
