"""`lopa bench` on groups of workers, at its smallest sizes. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bench_command import bench_record


@pytest.mark.nightly
def test_steps_of_a_group_have_the_tokens_of_one_process(tmp_path: Path) -> None:
    shape = "--shape dream-27m --layers 1 --prompt 16"
    options = f"{shape} --workers 0,2 --branches 3 --max-new-tokens 16 --steps 20".split()
    local, group = bench_record(tmp_path, "step", *options).rows
    assert group["same tokens"] is True
    assert group["step ms"] > group["control ms"] > 0
    assert (local["scatter ms"], local["gather ms"]) == (0, 0)
    assert group["launches"] == local["launches"]
