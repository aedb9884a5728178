"""Calls with masks: they compute what a call per lane computes, in fewer calls, where bits may depend on the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from lopa_lab.bench.step_plans import StepSize, step_of
from lopa_ray.execution.attention import SDPA_ATTENTION
from lopa_ray.execution.attention_backends import TOLERANCE, select_backend
from lopa_ray.execution.attention_trial import AttentionTrial
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.masked_attention import MAX_ROWS, MaskedAttention
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.padding import padded_rows
from support.tiny_model import load_tiny_model

CAPACITY = 256


@st.composite
def lanes_of_a_slot(draw: st.DrawFn, slot: int) -> list[Lane]:
    """Branches after one prefix: causal rows, then segments that see their own end or the next one's. If branches see
    cached positions behind them, all of them end there."""
    start, behind = draw(st.integers(0, 70)), draw(st.sampled_from((0, 0, 5, 40)))
    sizes = st.lists(st.integers(1, 12), min_size=1, max_size=3)
    sizes, lanes = st.just(draw(sizes)) if behind else sizes, []
    for _ in range(draw(st.integers(0, 5))):
        ends = [start + int(size) for size in np.cumsum(draw(sizes))]
        seen = [*ends[1:], ends[-1] + behind]
        segments = tuple(
            (end, draw(st.sampled_from(both))) for end, *both in zip(ends, ends, seen, strict=True)
        )
        causal = draw(st.integers(start, ends[-1])) if draw(st.booleans()) else 0
        rows = np.zeros(ends[-1] - start, np.int64)
        lanes.append(Lane(slot, start, rows, segments, causal_stop=causal))
    return lanes


@st.composite
def steps(draw: st.DrawFn) -> list[Lane]:
    """Slots in any order, and some rows more than one call takes."""
    of_slots = [draw(lanes_of_a_slot(slot)) for slot in draw(st.permutations(range(5)))]
    if draw(st.booleans()):
        rows = draw(st.integers(1, MAX_ROWS + 20))
        of_slots.insert(
            2, [Lane(5, 9, np.zeros(rows, np.int64), ((9 + rows, 9 + rows),))] * draw(st.integers(1, 3))
        )
    lanes = [lane for of_slot in of_slots for lane in of_slot]
    return lanes or [Lane(0, 0, np.zeros(1, np.int64), ((1, 1),))]


@settings(max_examples=60, deadline=None)
@given(steps(), st.sampled_from(list(TOLERANCE)), st.sampled_from([(4, 2), (3, 3), (6, 1)]))
def test_drawn_steps_have_the_results_of_the_formula_and_of_a_call_per_lane(
    lanes: list[Lane], dtype: torch.dtype, heads: tuple[int, int]
) -> None:
    config = dataclasses.replace(
        load_tiny_model().config, num_heads=heads[0], num_kv_heads=heads[1], head_dim=16
    )
    trial, by_lane = (
        AttentionTrial(backend, config, dtype, torch.device("cpu"), tuple(lanes), CAPACITY)
        for backend in (MaskedAttention(bucket=padded_rows), SDPA_ATTENTION)
    )
    attended = trial.run()
    close = {"atol": TOLERANCE[dtype], "rtol": 0}
    torch.testing.assert_close(attended.float(), trial.formula(), **close)
    torch.testing.assert_close(attended, by_lane.run(), **close)


def runner_in(dtype: torch.dtype, slots: int) -> BranchRunner:
    model = load_tiny_model().to(dtype)
    return BranchRunner(model, max_num_seqs=slots, max_model_len=CAPACITY, attention=MaskedAttention())


@pytest.mark.parametrize(
    ("requests", "branches", "window", "calls"),
    [
        pytest.param(1, 8, 8, 1, id="branches-of-a-request"),
        pytest.param(32, 1, 1, 1, id="a-row-of-each-request"),
        pytest.param(3, 4, 8, 3, id="branches-of-requests"),
        pytest.param(1, 3, MAX_ROWS, 3, id="branches-too-long-to-share-a-call"),
    ],
)
def test_lanes_share_calls(monkeypatch, requests: int, branches: int, window: int, calls: int) -> None:
    runner, counted = runner_in(torch.bfloat16, requests), []
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *x, **y: counted.append(1) or attend(*x, **y)
    )
    plans = StepSize(requests, branches, window, 20).plans(runner.vocabulary.mask_token_id)
    runner.execute(step_of(runner, plans))
    assert len(counted) == calls * runner.model.config.num_layers


def reports_of(runner: BranchRunner, prefixes: Sequence[int]) -> list[list[float]]:
    mask = runner.vocabulary.mask_token_id
    plans = [StepSize(1, 1, 2, prefix).plans(mask)[0] for prefix in prefixes]
    return [report.scores.tolist() for _, report in runner.execute(step_of(runner, plans)).reports]


def test_what_other_requests_left_in_the_slots_is_not_read() -> None:
    """It may be no number, and a call over slots reads as many positions of each."""
    runner = runner_in(torch.bfloat16, 3)
    wanted = reports_of(runner, (0, 40, 7))
    for slot, prefix in enumerate((0, 40, 7)):
        runner.cache.data[slot, :, :, :, prefix:] = torch.nan
    assert reports_of(runner, (0, 40, 7)) == wanted
    assert not np.isnan(wanted).any()


@pytest.mark.parametrize(
    ("dtype", "attention"), [(torch.float32, SDPA_ATTENTION), (torch.bfloat16, MaskedAttention())]
)
def test_a_branch_that_computes_cached_positions_leaves_them_to_the_others(dtype, attention) -> None:
    """And it reports what it would report if nothing were cached."""
    runner = BranchRunner(
        load_tiny_model().to(dtype), max_num_seqs=3, max_model_len=CAPACITY, attention=attention
    )
    (cached,) = StepSize(1, 2, 8, 20).plans(runner.vocabulary.mask_token_id)
    branch = cached.branches[0]
    whole = dataclasses.replace(cached, start=0, canvas=(*range(20), *cached.canvas))
    branches = (dataclasses.replace(branch, start=20), branch, dataclasses.replace(branch, start=20))
    together = dataclasses.replace(whole, branches=branches)
    assert (together.num_rows, together.max_branch_rows) == (8 + 28 + 8, 28)
    alone = dataclasses.replace(whole, branches=(branch,), cached=())
    step = step_of(runner, [together, cached, alone])
    runner.cache.data[1, :, :, :, :20] = runner.cache.data[0, :, :, :, :20].normal_()
    before = runner.cache.data[0, :, :, :, :20].clone()
    scores = [report.scores.tolist() for _, report in runner.execute(step).reports]
    assert torch.equal(runner.cache.data[0, :, :, :, :20], before)
    first, drafted, last, cached_one, _, by_itself = map(torch.tensor, scores)
    tolerance = TOLERANCE[dtype] if dtype == torch.bfloat16 else 0
    for one, other in ((last, first), (cached_one, first), (by_itself, drafted)):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)
    assert not torch.equal(first, drafted)


@pytest.mark.parametrize(
    ("dtype", "batch_invariant", "wanted"),
    [
        (torch.bfloat16, False, MaskedAttention()),
        (torch.bfloat16, True, SDPA_ATTENTION),
        (torch.float32, False, SDPA_ATTENTION),
    ],
)
def test_it_is_chosen_where_bits_may_depend_on_other_lanes(dtype, batch_invariant, wanted) -> None:
    config = dataclasses.replace(load_tiny_model().config, batch_invariant=batch_invariant)
    assert select_backend("auto", DEVICES["cpu"], config, dtype, CAPACITY) == wanted
