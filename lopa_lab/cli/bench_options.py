"""Options of the commands of `lopa bench`, and what all of them do with their measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.command_line.exit_status import exit_on_error
from lopa_lab.bench.model_shapes import SHAPES
from lopa_ray.errors import SettingsError


def _list_of(kind: Callable[[str], Any], what: str) -> Callable[[str], tuple[Any, ...]]:
    """A parser of values with commas between them."""

    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part.strip()) for part in text.split(","))
        except ValueError:
            raise typer.BadParameter(f"got {text!r}; allowed: {what}, with commas between several") from None

    return parse


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _natural(text: str) -> int:
    if int(text) < 0:
        raise ValueError
    return int(text)


def _positive_number(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def _on_or_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError
    return text == "on"


def _format(text: str) -> tuple[str, str]:
    dtype, _, quantization = text.partition("/")
    return dtype, quantization or "none"


def _word(text: str) -> str:
    if not text:
        raise ValueError
    return text


POSITIVE = _list_of(_positive, "whole numbers from 1 on")
NATURAL = _list_of(_natural, "whole numbers from 0 on")
NUMBERS = _list_of(_positive_number, "numbers above 0")
FORMATS = _list_of(_format, "names like bfloat16 or float32/w8a8")
WORDS = _list_of(_word, "names")
SWITCHES = _list_of(_on_or_off, "on, off")

ModelOption = Annotated[str, typer.Option("--model", metavar="DIR|NAME", help="Checkpoint, or demo.")]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--shape",
        help=f"Random weights in a shape instead: {', '.join(SHAPES)}.",
    ),
]
LayersOption = Annotated[
    int | None, typer.Option("--layers", min=1, help="Cut the shape down to so many layers.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or npu.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="Torch threads of each process.")]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", min=1, help="Number of measured calls; the median counts.")
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Number of measurements.")]
PromptOption = Annotated[int, typer.Option("--prompt", min=1, help="Tokens of the prompt.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the record (JSON) to this file.")
]
AgainstOption = Annotated[
    Path | None, typer.Option("--against", metavar="FILE", help="Show ratios to this earlier record.")
]


def list_option(name: str, parser: Callable[[str], tuple[Any, ...]], help: str) -> Any:
    """An option of values with commas between them."""
    return typer.Option(name, parser=parser, metavar="A,B,...", help=help)


class Publisher:
    """Prints the measurements of a command and writes its record."""

    def __init__(self, benchmark: str, device: str, output: Path | None, against: Path | None) -> None:
        """Raises SettingsError, before anything is measured, if the earlier record cannot be read or the new one
        cannot be written."""
        from lopa_lab.bench.record import BenchRecord, check_writable, now
        from lopa_lab.records.checkout import checkout_commit

        if output is not None:
            check_writable(output)
        self._commit = checkout_commit()

        self._benchmark, self._device, self._output = benchmark, device, output
        self._earlier = None if against is None else BenchRecord.read(against)
        if self._earlier is not None and self._earlier.benchmark != benchmark:
            raise SettingsError(
                f"--against: {against} is a record of lopa bench {self._earlier.benchmark}; this is lopa bench "
                f"{benchmark}"
            )
        self._started = now()

    def publish(self, found: Any) -> None:
        """Keep the record, and print its table."""
        from lopa_lab.bench.comparison import (
            common_values,
            compared_table,
            describe_machine,
            differences,
            record_table,
        )
        from lopa_lab.bench.record import BenchRecord, arguments_of_process
        from lopa_lab.records.markdown import table

        record = BenchRecord.make(
            self._benchmark, arguments_of_process(), self._device, self._started, self._commit, found
        )
        if self._output is not None:
            record.write(self._output)
        header, *rows = (
            record_table(record) if self._earlier is None else compared_table(record, self._earlier)
        )
        typer.echo(table(header, rows))
        typer.echo(f"\nAll rows: {common_values(record)}" if common_values(record) else "")
        typer.echo(f"{record.method}\n{describe_machine(record)}")
        if self._earlier is not None:
            typer.echo("In brackets: the ratio to the earlier record.")
            for line in differences(record, self._earlier):
                typer.echo(f"Different {line}")
        if self._output is not None:
            typer.echo(f"Record: {self._output}")


@contextmanager
def benchmark(name: str, device: str, output: Path | None, against: Path | None) -> Iterator[Publisher]:
    """The run of a command. Errors become a line on stderr and an exit status."""
    with exit_on_error():
        yield Publisher(name, device, output, against)
