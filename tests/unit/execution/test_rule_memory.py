"""What rules with memory ask of logits, against the formulas, and rows that have nothing to do with each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.klass import KlassSettings
from lopa_ray.decoding.decoders.s2d2 import S2D2Settings
from lopa_ray.decoding.decoders.wino import WinoSettings
from lopa_ray.execution.lane import lanes_of
from lopa_ray.execution.rule_memory import add_credits, attend_in_shadow_slots, divergences, verify_drafts
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan
from lopa_ray.protocol.scoring import ChooseTokens, StateBefore
from support.fake_model import VOCABULARY
from support.tiny_model import load_tiny_model


def test_divergences_are_from_the_state_before_or_from_nothing() -> None:
    now, before = torch.tensor([[0.2, 0.8], [0.2, 0.8]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    from_before, from_nothing = divergences(now.log(), before.log(), torch.tensor([True, False]))[
        :, 0
    ].tolist()
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert from_before == pytest.approx(0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.5))
    assert from_nothing == pytest.approx(-math.log(1e-12) - entropy)


def test_credit_of_earlier_calls_and_of_this_one_raises_logits() -> None:
    """alpha 2, gamma 0.5. Token 1 has a credit of 3; token 2 is the favourite, with probability 0.5."""
    logits = torch.tensor([[0.2, 0.3, 0.5]]).log()
    table = torch.tensor([[[2.0, 0.5], [1.0, 3.0]]], dtype=torch.float64)
    memory = torch.zeros(1, 2, dtype=torch.float64)
    raised = add_credits(logits, table, memory, None) - logits
    assert raised[0].tolist() == pytest.approx([0.0, 2 * math.log(4), 2 * math.log(1 + 0.5**0.5)], abs=1e-6)
    assert memory[0].tolist() == pytest.approx([2, math.log(0.5)])
    add_credits(logits, table, memory, lambda x: x + torch.tensor([9.0, 0.0, 0.0]))
    assert memory[0, 0] == 0  # favourites are those of logits with penalties and biases


def test_a_rejected_draft_gives_way_to_what_the_verifier_finds_more_likely() -> None:
    """Token 2 gains most, unless it is banned; where nothing gains, the most likely token stays."""
    now, drafted = (
        torch.tensor([[0.3, 0.3, 0.4]] * 2).log(),
        torch.tensor([[0.8, 0.2, 0.0], [0.3, 0.3, 0.4]]).log(),
    )
    tokens, banned = torch.tensor([[0], [0]]), torch.tensor([False, False, True])
    found = verify_drafts(now, drafted, tokens, torch.zeros(3, dtype=torch.bool))
    assert found[0].tolist() == pytest.approx([0.3, 2, 0.4]) and found[1].tolist() == pytest.approx(
        [0.3, 2, 0.4]
    )
    assert verify_drafts(now, drafted, tokens, banned)[:, 1].tolist() == [1, 0]


def plan_with_state_before(*inputs: tuple[tuple[int, int], ...] | None) -> Plan:
    """Branches on one canvas of 6 masks after 2 tokens, each of which fills position 2."""
    branches = tuple(
        Branch(((8, 8),), range(2, 8), fills=((2, 7 + at),), scoring=ChooseTokens(memory=StateBefore(before)))
        for at, before in enumerate(inputs)
    )
    return Plan(step=1, start=0, canvas=(5, 6, *(49,) * 6), branches=branches, cached=())


def test_a_state_before_has_one_lane_also_where_it_is_a_branch() -> None:
    """Of branches that fill position 2: two were masks there before; the third had the second branch's token."""
    plan = plan_with_state_before(((2, 49),), ((2, 49),), ((2, 8),), None)
    lanes = lanes_of(ScheduledRequest(1, 0, plan, (0, 1, 2, 3)))
    assert [lane.index for lane in lanes] == [0, 1, 2, 3, -1]
    assert [lane.beside for lane in lanes] == [4, 3, -1, 0, 0]
    assert lanes[-1].canvas.tolist() == [5, 6, *(49,) * 6] and not lanes[-1].scored
    # A worker without the second branch computes that state too.
    assert len(lanes_of(ScheduledRequest(1, 0, plan, (2,)))) == 2


def test_shadow_slots_see_all_but_their_own_position() -> None:
    """A branch of 5 rows, slots for positions 2 and 3."""
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 7, 2, 4).unbind()
    session = new_session([5, 6], WinoSettings(max_new_tokens=3, block_size=2), VOCABULARY)
    plan = replace(session.plan(), canvas=(5, 6, 7, 8, 9))
    lanes = lanes_of(ScheduledRequest(1, 0, plan, (0,)))
    assert [lane.beside for lane in lanes] == [1, -1]
    assert (lanes[1].start, lanes[1].stop, lanes[1].hides) == (2, 4, 0)
    mixed = attend_in_shadow_slots(lambda *_: torch.zeros_like(q), lanes, [0, 5, 7])(0, q, k, v)
    assert not mixed[:5].any()
    for row, hidden in ((5, 2), (6, 3)):
        seen = [at for at in range(7) if at != hidden]
        expected = sdpa(q[row : row + 1], k[seen].transpose(0, 1), v[seen].transpose(0, 1))
        assert torch.allclose(mixed[row : row + 1], expected, atol=1e-6)


def test_memory_has_the_same_bits_beside_other_requests_and_on_another_worker() -> None:
    """KLASS, WINO and S2D2 in one step, alone and apart from their other branches."""
    torch.set_num_threads(1)
    runner = BranchRunner(load_tiny_model(), max_num_seqs=3, max_model_len=64)
    settings = (
        KlassSettings(max_new_tokens=12, block_size=6, num_branches=3),
        WinoSettings(max_new_tokens=12, block_size=6, num_branches=3),
        S2D2Settings(max_new_tokens=12, block_size=6, min_expected=0),
    )
    # The row before a block of S2D2 decides its first position, and is cached.
    sessions = [new_session([5, 6, 7, 8, 9, 10], s, runner.vocabulary) for s in settings]
    for _ in range(3):
        plans = [session.plan() for session in sessions]
        requests = [
            ScheduledRequest(at, at, plan, tuple(range(len(plan.branches)))) for at, plan in enumerate(plans)
        ]
        together = runner.execute(StepPlan(0, 1, tuple(requests))).reports
        for request_id, report in together:
            alone = replace(requests[request_id], branch_indices=(report.branch,))
            ((_, again),) = runner.execute(StepPlan(0, 1, (alone,))).reports
            assert len(report.memory) == len(report.positions)
            assert again.memory.tobytes() == report.memory.tobytes()
        for at, session in enumerate(sessions):
            session.advance([report for request_id, report in together if request_id == at])
