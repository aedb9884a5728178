"""Commands of `lopa bench` that start a Ray of their own. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_lab.bench.measurements import BenchRecord
from support.client_command import run_command


@pytest.mark.nightly
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
