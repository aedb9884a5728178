"""A step's report travels as one buffer, and says the same on the other side."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lopa_ray.protocol.step_report import BranchReport, ScoredRows, StepReport
from support.in_process_group import report_bytes
from support.step_reports import pack_reports


@st.composite
def branch_reports(draw: st.DrawFn) -> BranchReport:
    """Any number of rows, and of top tokens of each row; NaN and infinity among the numbers."""
    rows, width = draw(st.integers(0, 40)), draw(st.sampled_from([0, 1, 5]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def floats(*shape: int) -> np.ndarray:
        return rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1 / 3, 1e-300], shape)

    def ids(*shape: int) -> np.ndarray:
        return rng.integers(0, 2**31, shape, dtype=np.int32)

    return BranchReport(
        step=draw(st.integers(1, 1000)),
        branch=draw(st.integers(0, 100)),
        positions=ids(rows),
        tokens=ids(rows),
        probabilities=floats(rows),
        logprobs=floats(rows).astype(np.float32),
        scores=floats(rows),
        top_tokens=ids(rows, width),
        top_logprobs=floats(rows, width).astype(np.float32),
        memory=floats(rows, draw(st.integers(0, 2))),
        draws=floats(rows, draw(st.sampled_from([0, 2]))),
    )


@pytest.mark.medium
@given(st.lists(st.tuples(st.integers(0, 2**62), branch_reports()), max_size=12))
def test_what_arrives_is_what_was_sent(reports: list[tuple[int, BranchReport]]) -> None:
    sent = pack_reports(3, 9, reports)
    arrived = pickle.loads(pickle.dumps(sent))
    assert arrived.epoch == 3
    for step_report in (sent, arrived):
        assert len(step_report.reports) == len(reports)
        for (request_id, report), (expected_id, expected) in zip(step_report.reports, reports, strict=True):
            assert (request_id, report.step, report.branch) == (expected_id, expected.step, expected.branch)
            assert report_bytes(report) == report_bytes(expected)
            assert report.top_tokens.shape == expected.top_tokens.shape
            assert report.memory.shape == expected.memory.shape
            assert report.draws.shape == expected.draws.shape
            assert [array.dtype for array in arrays_of(report)] == [
                array.dtype for array in arrays_of(expected)
            ]


def arrays_of(report: BranchReport) -> list[np.ndarray]:
    return [getattr(report, name) for name in ScoredRows.__slots__]


def test_times_travel_along() -> None:
    sent = StepReport.without_branches(1, 2, 0.25, 0.5)
    arrived = pickle.loads(pickle.dumps(sent))
    assert (arrived.epoch, arrived.step, arrived.commit_s, arrived.forward_s) == (1, 2, 0.25, 0.5)
    assert arrived.reports == [] and len(arrived.rows.positions) == 0


def test_a_large_report_is_one_buffer_of_little_more_than_its_numbers() -> None:
    """32 requests of 8 branches of 64 positions."""
    rows = np.arange(64, dtype=np.int32)
    scores = np.linspace(0, 1, 64)
    no_tops = np.zeros((64, 0), np.int32), np.zeros((64, 0), np.float32)
    report = BranchReport(rows, rows, scores, scores.astype(np.float32), scores, *no_tops, step=1, branch=0)
    sent = pack_reports(1, 1, [(request, report) for request in range(32) for _ in range(8)])
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    numbers = 256 * 64 * (4 + 4 + 8 + 4 + 8)
    (buffer,) = buffers
    assert numbers < buffer.raw().nbytes < numbers + 256 * 56 + 100 and len(pickled) < 200
