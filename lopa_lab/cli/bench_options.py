"""Options of the commands of `lopa bench`, and what all of them do with their measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from cluster.command_line.engine_options import declare_parameters
from cluster.command_line.options import allowed_values
from cluster.command_line.progress import ShownTask
from lopa_lab.bench.measurements import (
    BenchRecord,
    Measurements,
    common_values,
    compared_table,
    differences,
    record_table,
    varying_keys,
)
from lopa_lab.bench.model_shapes import SHAPES
from lopa_lab.records.machine import Machine, checkout_commit
from lopa_lab.records.markdown import table
from lopa_lab.records.record import arguments_of_process, check_writable, now
from lopa_lab.records.terminal_tables import terminal_tables
from lopa_ray.errors import SettingsError

Parser: TypeAlias = Callable[[str], tuple[Any, ...]]


def _list_of(
    kind: Callable[[str], Any], what: str, allowed: Callable[[Any], bool] = lambda _: True
) -> Parser:
    """A parser of values with commas between them, all of which have to be `allowed`."""

    def parse(text: str) -> tuple[Any, ...]:
        try:
            values = tuple(kind(part.strip()) for part in text.split(","))
        except ValueError:
            values = ()
        if not values or not all(map(allowed, values)):
            raise typer.BadParameter(f"got {text!r}; allowed: {what}, with commas between several")
        return values

    return parse


def _on_or_off(text: str) -> bool:
    return ("off", "on").index(text) == 1


POSITIVE = _list_of(int, "whole numbers from 1 on", lambda value: value >= 1)
NATURAL = _list_of(int, "whole numbers from 0 on", lambda value: value >= 0)
NUMBERS = _list_of(float, "numbers above 0", lambda value: 0 < value < float("inf"))
WORDS = _list_of(str, "names", bool)
SWITCHES = _list_of(_on_or_off, "on, off")


def several(parser: Parser, help: str, default: str | None = None) -> Any:
    """An option of values with commas between them. `default` describes a default that is too long for the help."""
    return typer.Option(parser=parser, metavar="A,B,...", help=help, show_default=default or True)


BranchesOption = Annotated[Any, several(POSITIVE, "Branches per request.")]
RequestsOption = Annotated[Any, several(POSITIVE, "Requests in flight.")]
WorkersOption = Annotated[Any, several(POSITIVE, "Branch workers.")]
ModelOption = Annotated[str, typer.Option(metavar="DIR|NAME", help="Checkpoint, or demo.")]
ShapeOption = Annotated[
    str | None, typer.Option(help=f"Random weights in a shape instead: {', '.join(SHAPES)}.")
]
LayersOption = Annotated[int | None, typer.Option(min=1, help="Cut the shape down to so many layers.")]
DeviceOption = Annotated[str, typer.Option(help=f"{allowed_values('device')}.")]
DtypeOption = Annotated[str, typer.Option(help=f"{allowed_values('dtype')}.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Torch threads of each process.")]
RepeatsOption = Annotated[int, typer.Option(min=1, help="Number of measured calls; the median counts.")]
RoundsOption = Annotated[int, typer.Option(min=1, help="Number of measurements.")]
PromptOption = Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")]
MaxNewTokensOption = Annotated[int, typer.Option(min=1)]


def _record_files(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the record (JSON) to this file."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Show ratios to this earlier record.")
    ] = None,
) -> None:
    """The options that all benchmarks have."""


def benchmark(measure: Callable[..., Measurements]) -> Callable[..., None]:
    """The command of a benchmark: a function of its options that returns measurements.

    The command has the options `--output` and `--against` too. It prints the table and writes the record. Errors become
    a line on stderr and an exit status.
    """

    @wraps(measure)
    def command(*, output: Path | None, against: Path | None, **options: Any) -> None:
        name = measure.__name__
        if output is not None:
            check_writable(output)
        started, commit, earlier = now(), checkout_commit(), _earlier_record(name, against)
        with ShownTask(f"Measuring {name}"):
            measurements = measure(**options)
        record = BenchRecord.of_run(
            arguments_of_process(),
            benchmark=name,
            started=started,
            machine=Machine.here(options.get("device") or "cpu"),
            commit=commit,
            **asdict(measurements),
        )
        if output is not None:
            record.write(output)
        _print(record, earlier)
        if output is not None:
            typer.echo(f"Record: {output}")

    own = (signature(function, eval_str=True).parameters.values() for function in (measure, _record_files))
    declare_parameters(command, chain.from_iterable(own))
    return command


def _earlier_record(name: str, path: Path | None) -> BenchRecord | None:
    """Raises SettingsError if it cannot be read, or is of another benchmark."""
    record = None if path is None else BenchRecord.read(path)
    if record is not None and record.name != name:
        raise SettingsError(
            f"--against: {path} is a record of lopa bench {record.name}; this is lopa bench {name}"
        )
    return record


def _print(record: BenchRecord, earlier: BenchRecord | None) -> None:
    """Markdown, or on a terminal tables and text that fit its width."""
    header, *rows = record_table(record) if earlier is None else compared_table(record, earlier)
    console = Console(highlight=False)
    if console.is_terminal:
        for part in terminal_tables(header, rows, len(varying_keys(record)), console):
            console.print(part)
            console.print()
    else:
        typer.echo(f"{table(header, rows)}\n")
    common = common_values(record)
    lines = [f"All rows: {common}"] if common else []
    lines += [record.method, record.environment]
    if earlier is not None:
        lines += ["In brackets: the ratio to the earlier record."]
        lines += [f"Different {line}" for line in differences(record, earlier)]
    for line in lines:
        console.print(line, markup=False, soft_wrap=not console.is_terminal)
