"""Workers that come and go in the middle of steps, and whole groups, without Ray: the bits of every report stay
the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from lopa_ray.execution.attention import PackedAttention
from lopa_ray.protocol.plan import ScheduledRequest
from lopa_ray.scheduling.recovery import recover
from support.chaos_group import decode_with_losses
from support.decode_kinds import CANVASES, KINDS, OFTEN
from support.fake_model import FakeModel
from support.fake_session import decode
from support.in_process_group import InProcessGroup
from support.marks import also_long, also_slow
from support.tiny_model import load_canvas_model, load_tiny_model

MODEL = load_tiny_model()


@pytest.mark.parametrize("kind", ["two_phase", "single_phase", "dual_cache", "block_diffusion"])
def test_lost_and_new_workers_change_no_bit_of_packed_attention(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lopa_ray.execution.canvas_attention.SDPA_ATTENTION", PackedAttention())
    counts = decode_with_losses(MODEL, 1, [kind], 20)
    assert counts["lost"] > 3 and counts["replayed"]


@pytest.mark.parametrize("kind", [*OFTEN, *also_long(*(kind for kind in KINDS if kind not in OFTEN))])
def test_lost_and_new_workers_change_no_bit(kind: str) -> None:
    counts = decode_with_losses(MODEL, 1, [kind], 40)
    assert counts["split"] > 1 and (counts["parts"] > 2 or "dual" in kind)
    assert counts["lost"] > 10 and counts["groups lost"] > 2
    _, steps = decode([1, 2, 3], KINDS[kind], FakeModel())
    staging = [step.plan for step in steps if step.plan.branches[0].to_stage]
    # Nothing is moved where every worker stages its own.
    assert counts["moved"] > 2 or all(plan.stage_shared for plan in staging)
    assert bool(counts["replayed"]) == bool(staging)


@pytest.mark.parametrize("stored", [*also_slow(0), *also_long(40)])
def test_self_conditioning_changes_no_bit_whoever_is_lost(
    stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals reach other workers by commits; newcomers copy them; new groups compute the calls on a canvas again."""
    monkeypatch.setattr("lopa_ray.decoding.decoders.renoising.ENCODED_ROWS", 8)
    counts = decode_with_losses(load_canvas_model(), 3, [*CANVASES], 25, stored)
    assert min(counts[key] for key in ("lost", "groups lost", "replayed", "moved")) > 2
    assert counts["staged again, two phases"] > 2 and counts["staged again, one phase"] > 2
    assert (counts["prefixes"] > 1) == (stored > 0)


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (7, ["single_phase", "drawn_causal"]),
        *also_slow((7, ["block_diffusion", "sub_blocks"]), (7, ["multi_block", "multi_block_edits"])),
        *also_long((7, ["dmax"]), (9, ["nemotron", "nemotron_full_context", "self_speculation"])),
    ],
)
def test_stored_prefixes_change_no_bit_whoever_is_lost(seed: int, kinds: list[str]) -> None:
    counts = decode_with_losses(MODEL, seed, kinds, 60, stored=40)
    assert min(counts[key] for key in ("lost", "groups lost", "prefixes")) > 2


def test_every_way_to_recover_is_taken() -> None:
    counts = sum((decode_with_losses(MODEL, seed, [*KINDS], 20) for seed in range(3)), Counter())
    assert (
        min(counts[key] for key in ("broken off", "staged again, two phases", "staged again, one phase")) > 2
    )


def scheduled(request: int, shared: bool) -> ScheduledRequest:
    group = InProcessGroup(MODEL, 1)
    kind = "single_phase" if shared else "two_phase"
    plan = group.create_session([1, 2], KINDS[kind]).plan()
    return ScheduledRequest(request, 0, replace(plan, stage_shared=shared), (0,))


def test_a_holder_becomes_the_source_and_nobody_is_named_where_there_is_one_worker() -> None:
    pending_commits = [
        scheduled(1, shared=False),
        scheduled(2, shared=False),
        scheduled(3, shared=True),
    ]
    restage, source_ranks = recover(pending_commits, [(False, False, True), (True, False, False)])
    assert source_ranks == {1: 1, 2: 1}
    assert [(w.request_id, w.branch_indices) for w in restage[1]] == [(2, (0,)), (3, ())]
    assert list(restage) == [1]
    assert recover(pending_commits, [(True, True, True)])[1] == {}
