"""`lopa bench serve` against a running server. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bench_command import bench, bench_record
from support.server_process import ServerProcess

pytestmark = pytest.mark.slow

REQUESTS = 4


def test_closed_and_open_loops(server: ServerProcess, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(server.api_key)
    arguments = [
        "serve", "--url", server.url, "--model", "demo", "--api-keys", str(keys), "--concurrency", "1,2",
        "--rate", "8", "--requests", str(REQUESTS), "--max-tokens", "32", "--deadline", "60",
        "--lopa", "num_branches=2",
    ]  # fmt: skip
    record = bench_record(tmp_path, *arguments)
    assert [(row["loop"], row["load"]) for row in record.rows] == [("closed", 1), ("closed", 2), ("open", 8)]
    for row in record.rows:
        assert (row["model"], row["settings"]) == ("demo", "num_branches 2")
        assert (row["sent"], row["failed"]) == (REQUESTS, 0)
        assert row["goodput within 60 s, requests/s"] == row["requests/s"] > 0
        assert 0 < row["first token p50 ms"] <= row["latency p99 ms"]
        assert 1 < row["branches per step"] <= 2
        assert row["TPF"] > 1


def test_a_load_that_the_server_refuses_is_an_error(server: ServerProcess) -> None:
    result = bench("serve", "--url", server.url, "--model", "demo", "--requests", "2", "--concurrency", "1")
    assert result.exit_code == 1
    assert "status 401" in result.output
