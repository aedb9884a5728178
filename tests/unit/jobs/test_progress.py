"""What a job logs."""

from __future__ import annotations

import pytest

from cluster.batch.lines import failed_line
from cluster.jobs.group import ChunkResult
from cluster.jobs.progress import JobProgress


def test_progress_counts_what_was_done_before(capsys: pytest.CaptureFixture[str]) -> None:
    progress = JobProgress(5, 2, {0, 2})
    failure = failed_line(4, "too long")
    progress.report(1)  # too soon
    progress.add(ChunkResult(("{}", "{}"), (failure,), 10, 2))
    progress.report(1)
    logged = capsys.readouterr().out
    assert "3 of 5 lines are done already" in logged
    assert "line 4: too long" in logged
    assert (
        "5 of 5 lines (100.0 %)" in logged
        and "TPF 5.00, 1 failed, 1 group at work" in logged
        and logged.count("of 5 lines (") == 1
    )
