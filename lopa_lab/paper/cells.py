"""Cells of the paper's tables and figures (arXiv 2512.16229): which preset, with which changes, makes which of them.

Nothing runs here. A cell's configuration is `cell.load()`, its task one of the names in `BENCHMARKS`, and what the
paper says is `cell.published`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from itertools import product
from typing import Any

from lopa_lab.paper.tasks import BENCHMARKS
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError

METRICS = {
    "score": "Accuracy or pass@1, in percent, ± the standard error of a run.",
    "tpf": "Tokens per forward: all decided tokens ÷ forward rounds.",
    "avg_tps": "Tokens per second, mean over problems: all decided tokens ÷ seconds after the first step.",
    "max_tps": "The same of the fastest problem.",
    "top10_tps": "The same, mean over the ten fastest problems.",
    "latency_s": "Seconds per problem, mean.",
}
"""Measures of the tables, as the authors count: tokens after the first EOS too."""

Overrides = Mapping[str, Mapping[str, Any]]
"""Section → setting → value, as `Config.load` takes them."""

INSTRUCT: Overrides = {
    "model": {"path": "Dream-org/Dream-v0-Instruct-7B", "lora": "SJTU-Deng-Lab/D2F_Dream_Instruct_7B_Lora"}
}
"""Overrides that make D2F-Dream-Instruct of the presets s1 to s18, which have D2F-Dream-Base."""

D2F: Overrides = {"decode": {"decoder": "d2f"}}
"""Overrides that make the row D2F of a preset for LoPA. Attention stays full, as in the authors' single-branch mode for
Dream; whether the row was made with that mode, or with D2F's block-causal decoder, is not published."""

BLOCK_CAUSAL_D2F: Overrides = {"decode": {"decoder": "d2f", "window_attention": "block_causal"}}
"""The same for DiffuCoder, where the authors' code has block-causal attention for D2F, and full attention for LoPA."""

BRANCHES = range(2, 15)
"""Numbers of branches on Figure 4's axis, after plain D2F."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One task of one row of a table, or one point or curve of a figure."""

    table: str
    """table1 … table7, fig4 or fig5."""
    row: str
    """The paper's name of the row; in figures the model and the number of branches."""
    task: str
    """One of `BENCHMARKS`."""
    config: str | None
    """A preset; None where nothing in this project makes the cell, for the reason in `note`."""
    overrides: Overrides = field(default_factory=dict)
    """Changes of the preset."""
    published: Mapping[str, float | None] = field(default_factory=dict)
    """Measure of the cell → its published value; None where the paper prints no number."""
    note: str = ""
    """Choices that the paper leaves open, or why the cell cannot be run."""

    @property
    def name(self) -> str:
        """The cell's name within its table."""
        return f"{self.row}, {self.column}"

    @property
    def column(self) -> str:
        """The paper's name of the task."""
        return BENCHMARKS[self.task].title

    def load(self) -> Config:
        """The configuration that makes the cell. Raises SettingsError where nothing does."""
        if self.config is None:
            raise SettingsError(f"{self.table}, {self.name}: {self.note}")
        return Config.load(self.config, {section: dict(values) for section, values in self.overrides.items()})


@dataclass(frozen=True, slots=True)
class _Origin:
    """The settings that make a row, for every task."""

    config: str | None
    """A preset, with {task} for the task's part of its name."""
    overrides: Overrides = field(default_factory=dict)
    note: str = ""


def cells(table: str) -> list[Cell]:
    """The cells of `table`, row by row as in the paper. Raises SettingsError for a name that is not in `TABLES`."""
    if table not in TABLES:
        raise SettingsError(f"table: got {table!r}; allowed: {', '.join(TABLES)}")
    return list(TABLES[table][1]())


@cache
def published() -> dict[str, Any]:
    """`published.json`: the results of Tables 1 to 7, copied, and the settings of Tables 5 and 6. Figures are drawn in
    the paper, not printed."""
    numbers: dict[str, Any] = json.loads(
        files("lopa_lab.paper").joinpath("published.json").read_text(encoding="utf-8")
    )
    return numbers


def _cells(table: str, origin: Callable[[str, str], _Origin]) -> Iterator[Cell]:
    """The cells of a table of results; `origin` returns the settings that make a cell, from its model and row."""
    for row in published()["results"][table]:
        settings = origin(row["model"], row["row"])
        for task, values in row["results"].items():
            yield Cell(
                table=table,
                row=f"{row['model']} {row['row']}".strip(),
                task=task,
                config=settings.config and settings.config.format(task=task.replace("_", "-")),
                overrides=settings.overrides,
                published=values,
                note=settings.note,
            )


NOT_PUBLISHED = "The paper gives no settings for this row; the preset says what was chosen."

_TABLE_1_AND_2 = {
    ("Dream", "vanilla"): _Origin("paper/dream-vanilla", note=NOT_PUBLISHED),
    ("Dream", "fast_dllm"): _Origin("paper/dream-fast-dllm", note=NOT_PUBLISHED),
    ("Dream", "lopa"): _Origin("paper/dream-lopa", note=NOT_PUBLISHED),
    ("D2F-Dream", "d2f"): _Origin("paper/d2f-dream-{task}", D2F),
    ("D2F-Dream", "lopa"): _Origin("paper/d2f-dream-{task}"),
    ("DiffuCoder", "vanilla"): _Origin("paper/diffucoder-vanilla", note=NOT_PUBLISHED),
    ("D2F-DiffuCoder", "d2f"): _Origin("paper/d2f-diffucoder-{task}", BLOCK_CAUSAL_D2F),
    ("D2F-DiffuCoder", "lopa"): _Origin("paper/d2f-diffucoder-{task}"),
}


def _system(model: str, setting: str, note: str = "") -> _Origin:
    return _Origin(f"paper/{setting.lower()}", INSTRUCT if model == "D2F-Dream-Instruct" else {}, note)


def _best_system(model: str, row: str) -> _Origin:
    setting = {"LoPA-Dist-NV": "S12", "LoPA-Dist-Ascend": "S18"}[row]
    return _system(model, setting, f"The table names no setting. It has the TPS of {setting} in Table 4.")


_SINGLE_DEVICE = (
    "The paper gives no settings for this row. Chosen is D2F alone, on one device, with the thresholds of S12, which "
    "Table 3 has."
)
_NOT_HERE = "{} is not run by this project."
_TABLE_7 = {
    "D2F-Dream-7B-Base (CUDA)": _Origin("paper/s12", {**D2F, "group": {"num_workers": 1}}, _SINGLE_DEVICE),
    "D2F-Dream-7B-Instruct (CUDA)": _Origin(
        "paper/s12", {**D2F, **INSTRUCT, "group": {"num_workers": 1}}, _SINGLE_DEVICE
    ),
    "Qwen3-8B (SGLang)": _Origin(None, note=_NOT_HERE.format("An autoregressive model")),
    "SDAR-4B-Chat": _Origin("paper/sdar-4b-chat", note=NOT_PUBLISHED),
    "SDAR-8B-Chat (LMDeploy)": _Origin(
        "paper/sdar-4b-chat",
        {"model": {"path": "JetLM/SDAR-8B-Chat"}},
        f"{NOT_PUBLISHED} It was run on LMDeploy there.",
    ),
    "LLaDA2.0-flash (SGLang)": _Origin(None, note=_NOT_HERE.format("The architecture llada2_moe")),
}


Curves = Mapping[str, tuple[Overrides, tuple[str, ...]]]
"""Model → what makes plain D2F, and the tasks of a figure."""

FIGURE_4: Curves = {
    "D2F-Dream": (D2F, ("gsm8k", "mbpp", "humaneval", "math")),
    "D2F-DiffuCoder": (BLOCK_CAUSAL_D2F, ("mbpp_plus", "humaneval_plus")),
}
FIGURE_5: Curves = {"D2F-Dream": (D2F, ("gsm8k", "mbpp", "humaneval"))}


def _points(table: str, curves: Curves, branches: Iterable[int]) -> Iterator[Cell]:
    """Plain D2F, then LoPA with each number of branches, on the preset of Table 5 for the task."""
    of_tasks = [(model, plain, task) for model, (plain, tasks) in curves.items() for task in tasks]
    for (model, plain, task), number in product(of_tasks, (1, *branches)):
        yield Cell(
            table=table,
            row=f"{model} D2F" if number == 1 else f"{model} {number} branches",
            task=task,
            config=f"paper/{model.lower()}-{task.replace('_', '-')}",
            overrides=plain if number == 1 else {"decode": {"num_branches": number}},
        )


def _of_methods(model: str, row: str) -> _Origin:
    return _TABLE_1_AND_2[model, row]


TABLES: dict[str, tuple[str, Callable[[], Iterator[Cell]]]] = {
    "table1": ("Table 1: Dream and D2F-Dream", partial(_cells, "table1", _of_methods)),
    "table2": ("Table 2: DiffuCoder and D2F-DiffuCoder", partial(_cells, "table2", _of_methods)),
    "table3": ("Table 3: systems", partial(_cells, "table3", _best_system)),
    "table4": ("Table 4: settings S1 to S18", partial(_cells, "table4", _system)),
    "table7": (
        "Table 7: speed next to other systems",
        partial(_cells, "table7", lambda model, _: _TABLE_7[model]),
    ),
    "fig4": ("Figure 4: TPF and score against branches", partial(_points, "fig4", FIGURE_4, BRANCHES)),
    "fig5": ("Figure 5: tokens decided per step", partial(_points, "fig5", FIGURE_5, (2, 4, 8))),
}
"""Title and cells of each table; Tables 5 and 6 are settings, in the presets."""
