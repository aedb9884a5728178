"""StepReports made of the reports of single branches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lopa_ray.protocol.step_report import BRANCH_COLUMNS, BranchReport, ScoredRows, StepReport


def pack_reports(epoch: int, step: int, reports: Sequence[tuple[int, BranchReport]]) -> StepReport:
    """As a runner would answer it: request id and report of each branch."""
    table = [
        (
            *(request_id, report.step, report.branch, *report.top_tokens.shape),
            *(report.memory.shape[-1], report.draws.shape[-1]),
        )
        for request_id, report in reports
    ]
    empty = ScoredRows.empty()

    def column(name: str) -> np.ndarray:
        return np.concatenate(
            [getattr(empty, name), *(getattr(report, name).ravel() for _, report in reports)]
        )

    names = (
        "positions",
        "tokens",
        "probabilities",
        "logprobs",
        "scores",
        "top_tokens",
        "top_logprobs",
        "memory",
        "draws",
    )
    rows = ScoredRows(**{name: column(name) for name in names})
    return StepReport(epoch, step, np.array(table, np.int64).reshape(-1, BRANCH_COLUMNS), rows)
