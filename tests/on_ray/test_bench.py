"""`lopa bench` on groups of workers, at its smallest sizes. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_lab.cli.bench_commands import TRANSPORTS
from support.bench_command import bench_record

TINY = ("--shape", "dream-27m", "--layers", "1", "--prompt", "16")


@pytest.mark.long
def test_steps_of_a_group_have_the_tokens_of_one_process(tmp_path: Path) -> None:
    record = bench_record(
        tmp_path,
        "step",
        *TINY,
        "--workers",
        "0,2",
        "--branches",
        "3",
        "--max-new-tokens",
        "16",
        "--steps",
        "20",
    )
    local, group = record.rows
    assert group["same tokens"] is True
    assert group["step ms"] > group["control ms"] > 0
    assert (local["scatter ms"], local["gather ms"]) == (0, 0)
    assert group["launches"] == local["launches"]


@pytest.mark.long
def test_commits_of_models_of_several_depths(tmp_path: Path) -> None:
    size = ("--shape", "dream-27m", "--layers", "1,2", "--workers", "1", "--span", "8", "--rounds", "1")
    record = bench_record(tmp_path, "commit", *size, "--transport", "single_phase")
    assert [row["layers"] for row in record.rows] == [1, 2]
    assert len({record.key_of(row) for row in record.rows}) == 2


@pytest.mark.long
def test_commits_by_transport(tmp_path: Path) -> None:
    size = (*TINY, "--workers", "2", "--span", "8", "--rounds", "1", "--transport", ",".join(TRANSPORTS))
    record = bench_record(tmp_path, "commit", *size)
    assert [row["transport"] for row in record.rows] == list(TRANSPORTS)
    for row in record.rows:
        assert row["commits"] > 0
        assert row["commit ms"] > 0 and row["pre-write ms"] > 0
    layers, two, heads, dim = 1, 2, 2, 64
    sent = (8 * layers * two * heads * dim + 512) * 4 / 1024
    for row in record.rows:
        assert row["KiB"] == (0 if row["transport"] == "single_phase" else sent)
