"""`lopa reproduce`: run the cells of a published table or figure, and compare them with what is published."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from lopa_lab.paper.cell_run import CellRun, evaluate
from lopa_lab.paper.cells import TABLES, Cell, cells
from lopa_lab.paper.comparison import KEYS, Comparison, file_name
from lopa_lab.paper.measured_model import MeasuredModel
from lopa_lab.paper.tasks import BENCHMARKS, CODE_VARIABLE
from lopa_lab.records.machine import Machine, checkout_commit
from lopa_lab.records.terminal_tables import terminal_tables
from lopa_ray import __version__
from lopa_ray.engine.config import Config
from lopa_ray.errors import LopaError, SettingsError


@dataclass(frozen=True, slots=True)
class Selection:
    """The cells to run, and what to run them on."""

    rows: Sequence[str] = ()
    """Names of rows, in any case, or parts of names where no row has that name; empty: all rows."""
    tasks: Sequence[str] = ()
    """Empty: all tasks."""
    stand_in: str | None = None
    """A benchmark that is run in the place of each."""
    base: Config | None = None
    """Model and group in place of the presets'; cells keep their decode settings."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the command line, which override presets."""
    limit: int | None = None
    concurrency: int = 1
    local: bool = False

    def cells_of(self, table: Sequence[Cell]) -> list[Cell]:
        """The chosen cells. Raises SettingsError for names of none, and for settings that these cells vary."""
        if self.stand_in not in (None, *BENCHMARKS):
            raise SettingsError(f"--stand-in: got {self.stand_in!r}; allowed: {', '.join(BENCHMARKS)}")
        varied = {name for cell in table for name in cell.overrides.get("decode", {})}
        for name in varied.intersection(self.overrides.get("decode", {})):
            raise SettingsError(f"decode.{name}: cells of {table[0].table} differ in it; leave it out")
        rows = _chosen("row", self.rows, [cell.row for cell in table])
        tasks = _chosen("task", self.tasks, [cell.task for cell in table])
        return [cell for cell in table if cell.row in rows and cell.task in tasks]

    def config_of(self, cell: Cell) -> Config:
        """The configuration that makes a cell on the model at hand. Raises SettingsError."""
        config = cell.load()
        if self.base is not None:
            config = config.replace(model=self.base.model, group=self.base.group)
        overrides = {section: dict(values) for section, values in self.overrides.items()}
        if "path" in overrides.get("model", {}):
            overrides["model"].setdefault("lora", None)  # an adapter belongs to its base model
        config = Config.parse(config.given(), overrides) if overrides else config
        return config.replace(model=config.model.replace(max_num_seqs=self.concurrency))

    def asked(self, cell: Cell, config: Config) -> dict[str, Any]:
        """The options and settings that a cell's run depends on, as JSON."""
        options = {"task": self.stand_in or cell.task, "limit": self.limit, "concurrency": self.concurrency}
        asked: dict[str, Any] = json.loads(json.dumps({**options, "settings": config.as_dict()}))
        return asked


def reproduce(table: str, selection: Selection, output: Path) -> bool:
    """Run the chosen cells, each into a file of its own in `output`, print all cells with a file next to the paper's
    numbers, and write comparison.md there. Returns whether there are runs, and each cell that could be run has one.

    Cells of an earlier command are kept. A cell that cannot be run has its reason, and the others run. Raises
    SettingsError for names that there are not, settings that cells vary, and files of runs with other settings.
    """
    of_table = cells(table)
    chosen = selection.cells_of(of_table)
    files = {cell: output / f"{file_name(f'{cell.row} {cell.task}')}.json" for cell in of_table}
    reasons: dict[Cell, str] = {cell: cell.note for cell in chosen if cell.config is None}
    failed: dict[Cell, str] = {}
    waiting: list[tuple[Cell, Config]] = []
    for cell in chosen:
        if cell in reasons:
            continue
        try:
            config = selection.config_of(cell)
        except SettingsError as error:
            failed[cell] = str(error)
            continue
        if CellRun.read(files[cell], selection.asked(cell, config)) is None:
            waiting.append((cell, config))
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about intended settings
    waiting.sort(key=lambda pair: _model_key(pair[1]))  # a model is loaded once
    models: dict[str, MeasuredModel] = {}
    done: dict[str, CellRun] = {}
    try:
        for cell, config in waiting:
            asked = selection.asked(cell, config)
            try:
                key = json.dumps(asked, sort_keys=True)
                if key not in done:  # other cells may differ in what the model at hand does not have
                    Console(stderr=True).print(f"{table}, {cell.name}: {asked['task']}", markup=False)
                    done[key] = _run(asked, config, models, selection)
                done[key].write(files[cell])
            except LopaError as error:
                failed[cell] = str(error)
    finally:
        _close(models)
    found = {cell: run for cell in of_table if (run := CellRun.read(files[cell])) is not None}
    stand_in = f" ({selection.stand_in} in the place of each task)" if selection.stand_in else ""
    comparison = Comparison(TABLES[table][0] + stand_in, found, {**reasons, **failed})
    comparison.write(output)
    console = Console()
    console.print(comparison.title, markup=False)
    for part in terminal_tables(comparison.header, comparison.rows, KEYS, console) if found else ():
        console.print(part)
    for line in (*comparison.notes, f"Written: {output / 'comparison.md'}, and a JSON file per cell"):
        console.print(line, markup=False)
    return bool(found) and not failed


def _run(
    asked: dict[str, Any], config: Config, models: dict[str, MeasuredModel], selection: Selection
) -> CellRun:
    """Raises what ends the run of a cell."""
    benchmark = BENCHMARKS[asked["task"]]
    if benchmark.runs_code and os.environ.get(CODE_VARIABLE) != "1":
        raise SettingsError(
            f"grading executes programs that the model wrote; set {CODE_VARIABLE}=1, in a container (docs/paper.md)"
        )
    key = _model_key(config)
    if key not in models:
        _close(models)
        models[key] = MeasuredModel(config, local=selection.local)
    model = models[key]
    model.decode = config.decode
    scores, metric = evaluate(model, benchmark, selection.limit)
    made_with = {
        "machine": Machine.here(config.model.device).model_dump(mode="json"),
        "version": __version__,
        "commit": checkout_commit(),
        "command": ["lopa", *sys.argv[1:]],
    }
    return CellRun(
        asked=asked, made_with=made_with, scores=scores, metric=metric, records=tuple(model.records)
    )


def _close(models: dict[str, MeasuredModel]) -> None:
    for model in models.values():
        model.close()
    models.clear()


def _model_key(config: Config) -> str:
    values = config.as_dict()
    return json.dumps([values["model"], values["group"]], sort_keys=True)


def _chosen(what: str, wanted: Sequence[str], names: Sequence[str]) -> set[str]:
    """The chosen `names`; all of them where none was asked for."""
    chosen = set() if wanted else set(names)
    for text in wanted:
        same = {name for name in names if name.casefold() == text.casefold()}
        like = same or {name for name in names if text.casefold() in name.casefold()}
        if not like:
            raise SettingsError(f"--{what}: got {text!r}; allowed: {', '.join(dict.fromkeys(names))}")
        chosen |= like
    return chosen
