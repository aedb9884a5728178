"""Workers that come and go in the middle of steps, and whole groups, without Ray: the bits of every report stay
the same, with one step in flight and with two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lopa_ray.execution.attention import PackedAttention
from lopa_ray.protocol.plan import ScheduledRequest
from lopa_ray.scheduling.recovery import recover
from support.chaos_group import decode_with_losses
from support.decode_kinds import CANVASES, DECODES, KINDS
from support.in_process_group import InProcessGroup
from support.tiny_model import load_canvas_model, load_tiny_model

pytestmark = pytest.mark.medium

MODEL = load_tiny_model()

STAGED_BY_ALL = ("single_phase", "decision", "likelihood")
"""Kinds of which no K/V move, since every worker stages its own."""


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_lost_and_new_workers_change_no_bit(kind: str, overlap: bool) -> None:
    counts = decode_with_losses(MODEL, 1, [kind], 15, overlap=overlap)
    assert min(counts[key] for key in ("lost", "groups lost", "split")) > 0
    assert (counts["moved"] > 0) == (kind not in STAGED_BY_ALL)
    assert (counts["replayed"] > 0) == (kind != "likelihood")
    assert (counts["overlapped"] > 0) == overlap


@pytest.mark.parametrize("kind", ["two_phase", "single_phase"])
def test_lost_and_new_workers_change_no_bit_of_packed_attention(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lopa_ray.execution.canvas_attention.SDPA_ATTENTION", PackedAttention())
    counts = decode_with_losses(MODEL, 1, [kind], 20)
    assert counts["lost"] > 3 and counts["replayed"]


@pytest.mark.slow
@pytest.mark.parametrize("stored", [0, pytest.param(40, marks=pytest.mark.nightly)])
def test_self_conditioning_changes_no_bit_whoever_is_lost(
    stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals reach other workers by commits; newcomers copy them; new groups compute the calls on a canvas again."""
    monkeypatch.setattr("lopa_ray.decoding.decoders.renoising.ENCODED_ROWS", 8)
    counts = decode_with_losses(load_canvas_model(), 3, [*CANVASES], 25, stored)
    assert min(counts[key] for key in ("lost", "groups lost", "replayed", "moved")) > 2
    assert counts["staged again, two phases"] > 2 and counts["staged again, one phase"] > 2
    assert (counts["prefixes"] > 1) == (stored > 0)


@pytest.mark.parametrize(("kind", "seed"), [("single_phase", 2), ("decision", 1)])
def test_stored_prefixes_change_no_bit_whoever_is_lost(kind: str, seed: int) -> None:
    counts = decode_with_losses(MODEL, seed, [kind], 30, stored=40)
    assert min(counts[key] for key in ("lost", "groups lost", "prefixes")) > 1


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 20))]
)
@pytest.mark.parametrize(("stored", "overlap"), [(0, False), (40, True)])
def test_every_way_to_recover_is_taken_in_mixtures(seed: int, stored: int, overlap: bool) -> None:
    counts = decode_with_losses(MODEL, seed, [*KINDS], 50, stored, overlap)
    ways = ("overlapped", "cancelled") if overlap else ("staged again, one phase", "staged again, two phases")
    assert min(counts[key] for key in ("lost", "broken off", "groups lost", "replayed", *ways)) > 0


def scheduled(request: int, shared: bool) -> ScheduledRequest:
    group = InProcessGroup(MODEL, 1)
    kind = "single_phase" if shared else "two_phase"
    plan = group.create_session([1, 2], DECODES[kind]).plan()
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
