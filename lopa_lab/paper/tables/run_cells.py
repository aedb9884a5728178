"""Running the cells of a published table or figure on a model at hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.batch.open_engine import open_engine
from lopa_lab.paper.reports.run_report import RunReport
from lopa_lab.paper.runs.run import FinishedRun, RunOptions, run_benchmark, with_concurrency
from lopa_lab.paper.tables.cells import Cell, cells
from lopa_lab.paper.tasks.benchmarks import benchmark_names
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError, LopaError, SettingsError


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cells are run, and on what."""

    rows: tuple[str, ...] = ()
    """Names of rows, in any case, or parts of names where no row has that name; empty: all rows."""
    tasks: tuple[str, ...] = ()
    """Empty: all tasks."""
    stand_in: str | None = None
    """A benchmark that is run in the place of each."""
    base: Config | None = None
    """Model and group in place of the presets'; decode settings stay those of the cells."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the command line, over those of presets."""
    data: Mapping[str, Path] = field(default_factory=dict)
    """Benchmark → file of its problems."""

    def check(self, table: Sequence[Cell]) -> None:
        """Raises SettingsError for benchmarks that there are not, and for settings that one of these cells varies."""
        for option, name in (("--stand-in", self.stand_in), *(("--data", name) for name in self.data)):
            if name is not None and name not in benchmark_names():
                raise SettingsError(f"{option}: got {name!r}; allowed: {', '.join(benchmark_names())}")
        varied = {name for cell in table for name in cell.overrides.get("decode", {})}
        for name in self.overrides.get("decode", {}):
            if name in varied:
                raise SettingsError(f"decode.{name}: cells of {table[0].table} differ in it; leave it out")

    def reasons_to_skip(self, table: Sequence[Cell]) -> list[str]:
        """Why each of these cells is not run; empty for those that are. Raises SettingsError for names of none."""
        rows = _chosen("row", self.rows, [cell.row for cell in table])
        tasks = _chosen("task", self.tasks, [cell.task for cell in table])
        return [
            cell.note
            if cell.config is None
            else "not among the rows that were asked for"
            if cell.row not in rows
            else "not among the tasks that were asked for"
            if cell.task not in tasks
            else ""
            for cell in table
        ]

    def config_of(self, cell: Cell) -> Config:
        """The configuration that makes a cell on the model at hand. Raises SettingsError."""
        config = cell.load()
        if self.base is not None:
            config = config.replace(model=self.base.model, group=self.base.group)
        if not self.overrides:
            return config
        overrides = {section: dict(values) for section, values in self.overrides.items()}
        if "path" in overrides.get("model", {}):
            overrides["model"].setdefault("lora", None)  # an adapter belongs to its base model
        return Config.parse(config.given(), overrides)


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell, and what became of it."""

    cell: Cell
    task: str
    """The benchmark that was run, or would have been."""
    report: RunReport | None = None
    """Of its run."""
    reason: str = ""
    """Why it was not run."""
    failed: bool = False
    """Something ended it that neither the choice of cells nor the configuration did."""
    note: str = ""
    """What has to be known about the run."""


def run_cells(
    table: str, selection: Selection, output: Path, options: RunOptions
) -> Iterator[list[CellResult]]:
    """Run the cells that are chosen, each in a folder of its own under `output` with its report, going on with
    what is there.

    Yields the results of all cells, in the table's order, whenever one of them has come, and once before. A cell whose
    model or data cannot be had, or whose run ends with an error, is marked with the reason, and the others are run.
    Cells with one and the same configuration and benchmark are run once. Cells that are not chosen and were run earlier
    are read from their folders. Raises SettingsError for names that there are not, and for settings that a cell itself
    varies.
    """
    of_table = cells(table)
    selection.check(of_table)
    results: list[CellResult] = []
    wanted: list[tuple[int, Config]] = []
    for index, (cell, reason) in enumerate(zip(of_table, selection.reasons_to_skip(of_table), strict=True)):
        result = CellResult(cell, selection.stand_in or cell.task, reason=reason)
        if reason:
            earlier = FinishedRun.read(output / folder_name(cell))
            note = "This run is from an earlier command."
            results.append(
                result
                if earlier is None
                else replace(result, report=RunReport(earlier), reason="", note=note)
            )
            continue
        results.append(replace(result, reason="not reached yet"))
        try:
            wanted.append((index, with_concurrency(selection.config_of(cell), options.concurrency)))
        except SettingsError as error:
            results[index] = replace(result, reason=str(error))
    yield results
    # Cells of one model follow each other, so that it is loaded once.
    wanted.sort(key=lambda pair: _model_key(pair[1]))
    done: dict[str, CellResult] = {}
    with _Engines(options.local) as engines:
        for index, config in wanted:
            result = results[index]
            key = f"{result.task} {json.dumps(config.as_dict(), sort_keys=True)}"
            if key in done:
                note = f"This is the run of {done[key].cell.name}: they do not differ on this model."
                results[index] = replace(done[key], cell=result.cell, note=note)
            else:
                results[index] = done[key] = _run_cell(result, engines, config, output, selection, options)
            yield results


def _run_cell(
    result: CellResult,
    engines: _Engines,
    config: Config,
    output: Path,
    selection: Selection,
    options: RunOptions,
) -> CellResult:
    cell, task = result.cell, result.task
    Console(stderr=True).print(f"{cell.table}, {cell.name}: {task}", markup=False)
    assert cell.config is not None
    asked = replace(options, config_name=cell.config, data=selection.data.get(task))
    if options.chat is None and "-Base" in str(config.model.path):
        # The authors' launch script asks base models in plain text behind BOS, and the others in chats.
        asked = replace(asked, chat=False, add_bos=True)
    try:
        engine = engines.get(config)
        report = RunReport(run_benchmark(engine, task, config, output / folder_name(cell), asked))
    except (SettingsError, CheckpointError) as error:
        return replace(result, reason=str(error))
    except LopaError as error:
        return replace(result, reason=f"failed: {error}", failed=True)
    report.write()
    return replace(result, report=report, reason="")


class _Engines(ExitStack):
    """The engine of one model at a time."""

    def __init__(self, local: bool) -> None:
        super().__init__()
        self._local = local
        self._engine: dict[str, Engine] = {}
        """By the model's key: one, or none."""

    def get(self, config: Config) -> Engine:
        """The engine for a configuration's model and group."""
        key = _model_key(config)
        if key not in self._engine:
            self.close()
            self._engine.clear()
            self._engine[key] = self.enter_context(open_engine(config, local=self._local))
        return self._engine[key]


def _chosen(what: str, wanted: Sequence[str], names: Sequence[str]) -> set[str]:
    """Those of `names` that were asked for; all of them where nothing was."""
    chosen = set() if wanted else set(names)
    for text in wanted:
        same = {name for name in names if name.casefold() == text.casefold()}
        like = same or {name for name in names if text.casefold() in name.casefold()}
        if not like:
            raise SettingsError(f"--{what}: got {text!r}; allowed: {', '.join(dict.fromkeys(names))}")
        chosen |= like
    return chosen


def _model_key(config: Config) -> str:
    values = config.as_dict()
    return json.dumps([values["model"], values["group"]], sort_keys=True)


def folder_name(cell: Cell) -> str:
    """The name of the folder of a cell's run."""
    return re.sub(r"[^a-z0-9]+", "-", f"{cell.row} {cell.task}".casefold()).strip("-")
