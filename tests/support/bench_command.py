"""`lopa bench` as it is typed, and the record that it makes."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from cluster.cli import app
from lopa_lab.bench.measurements import BenchRecord


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def bench_record(folder: Path, *arguments: str | Path) -> BenchRecord:
    """The record of a command that has to succeed, which it writes to `folder`."""
    path = folder / "record.json"
    result = bench(*arguments, "--output", path)
    assert result.exit_code == 0, result.output
    assert f"Record: {path}" in result.output
    return BenchRecord.read(path)
