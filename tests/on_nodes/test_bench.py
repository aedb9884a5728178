"""Commands of `lopa bench` that start a Ray of their own. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_lab.bench.measurements import BenchRecord
from support.client_command import run_command


@pytest.mark.long
def test_pauses_after_a_kill(tmp_path: Path) -> None:
    options = ("--workers", "2", "--rounds", "1", "--max-new-tokens", "64", "--output", "record.json")
    run_command(tmp_path, "cluster.cli", "bench", "recovery", *options)
    record = BenchRecord.read(tmp_path / "record.json")
    assert [(row["workers"], row["killed"]) for row in record.rows] == [
        (2, "worker"),
        (2, "group"),
    ]
    for row in record.rows:
        assert row["same tokens"] is True
        assert row["longest pause s"] >= row["pause s"] > row["step ms"] / 1000 > 0


@pytest.mark.long
def test_parts_with_a_group_and_a_server(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    parts = ("step-cpu", "serve-cpu")
    run_command(
        tmp_path, "cluster.cli", "bench", "all", "--smallest", "--parts", ",".join(parts), "--output", "."
    )
    serve = BenchRecord.read(tmp_path / "records" / "serve-cpu.json")
    assert [(row["loop"], row["failed"]) for row in serve.rows] == [("closed", 0), ("open", 0)]
    step = BenchRecord.read(tmp_path / "records" / "step-cpu.json")
    assert [row["same tokens"] for row in step.rows] == [None, True]
    plots = {path.name for path in (tmp_path / "plots").iterdir()}
    assert plots == {
        "serve-cpu-throughput-against-concurrency.svg",
        "step-cpu-share-of-phases.svg",
    }
