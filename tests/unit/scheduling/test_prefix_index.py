"""Stored prefixes: the same bits from fewer rows, within the bound, with every worker in step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings as checks, strategies as st

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.errors import ProtocolError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.events import RequestStep
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan, StoredPrefix
from lopa_ray.scheduling.prefix_index import PrefixHashes, PrefixIndex
from support.in_process_group import InProcessGroup
from support.tiny_model import load_tiny_model

COMMON: dict[str, Any] = {"max_new_tokens": 16, "block_size": 8, "confidence_threshold": 0.5}
EXACT: dict[str, GenerationSettings] = {
    "block_diffusion": BlockDiffusionSettings(**COMMON, num_branches=3),
    "single_phase": LopaSettings(**COMMON, num_branches=3, window_attention="block_causal"),
}
FULL: dict[str, GenerationSettings] = {
    "lopa": LopaSettings(**COMMON, num_branches=3),
    "dual": FastDllmSettings(**COMMON, cache="dual"),
    "prefix": FastDllmSettings(**COMMON, cache="prefix", num_branches=3),
}
NEVER = {"vanilla": VanillaSettings(max_new_tokens=8), "no cache": FastDllmSettings(**COMMON, cache="none")}


def check(group: InProcessGroup) -> None:
    """Every worker has what the index says, and no more than it may."""
    index = group.scheduler.prefix_index
    ready = index._ready
    assert (
        sum(len(node.span) for node in [*ready.values(), *index._reserved.values()]) == index._used_positions
    )
    assert index._used_positions <= index.positions
    for runner in group.runners:
        held = {id: len(payload) for id, payload in runner.slots.prefixes.items()}
        assert set(ready) <= set(held) <= set(ready) | set(index.pending_evictions) | set(index._reserved)
        assert all(
            held[id] == runner.cache.empty_payload(len(node.span)).numel() for id, node in ready.items()
        )


def rows(plan: StepPlan) -> int:
    return sum(w.plan.branches[b].stop - w.start for w in plan.requests for b in w.branch_indices)


def run(group: InProcessGroup, prompt: list[int], settings: GenerationSettings) -> tuple[int, list[int]]:
    """Rows of the first step, and the answer."""
    session = group.create_session(prompt, settings)
    group.scheduler.submit(session)
    first = rows(group.scheduler.plan(len(group.runners))[0])
    while group.scheduler.busy:
        assert all(isinstance(event, RequestStep) for event in group.step())
    return first, session.generated


def test_the_first_step_feeds_what_is_new() -> None:
    group = InProcessGroup(load_tiny_model("sdar-tiny-3l"), 1, prefix_index=PrefixIndex(400))
    wanted = EXACT["block_diffusion"]
    assert run(group, list(range(40)), wanted)[0] == 40
    assert run(group, [*range(20), 1, 2, 3, 4], wanted)[0] == 8  # up to a block's end
    assert run(group, [*range(20), 1, 2, 3, 4, *range(60, 69)], wanted)[0] == 8  # on top of the second one
    assert run(group, list(range(40)), wanted)[0] == 0
    assert run(group, [*range(39), 99], wanted)[0] == 8
    index = group.scheduler.prefix_index
    assert (index.hit_requests, index.hit_positions) == (
        4,
        16 + 24 + 40 + 32,
    )
    assert len(group.runners[0].slots.prefixes) == 4


def test_a_whole_prompt_is_one_block_of_lopa() -> None:
    group = InProcessGroup(load_tiny_model(), 1, prefix_index=PrefixIndex(400))
    wanted = EXACT["single_phase"]
    assert run(group, list(range(20)), wanted)[0] == 28
    assert run(group, list(range(20)), wanted)[0] == 8
    assert run(group, list(range(19)), wanted)[0] == 27
    assert run(group, list(range(21)), wanted)[0] == 29


@pytest.mark.medium
@pytest.mark.parametrize("kind", FULL)
def test_under_full_attention_prefixes_are_taken_only_if_that_was_asked_for(kind: str) -> None:
    first = list(range(40))
    exact = InProcessGroup(load_tiny_model(), 1, prefix_index=PrefixIndex(400))
    whole, answer = run(exact, first, FULL[kind])
    assert run(exact, first, FULL[kind]) == (whole, answer)
    assert exact.scheduler.prefix_index.hit_requests == 0
    near = InProcessGroup(load_tiny_model(), 2, prefix_index=PrefixIndex(400, approximate=True))
    assert run(near, first, FULL[kind])[1] == answer
    again, same = run(near, first, FULL[kind])
    assert (whole - again, same) == (40, answer)  # all of the same prompt
    other, _ = run(near, [*range(37), 3, 3, 3], FULL[kind])
    assert whole - other == 32  # a multiple of 16
    check(near)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_newcomer_gets_what_others_have_of_another_prompt(lost: int) -> None:
    """It has no stored prefix to start from, and all workers need the same K/V, approximate or not."""
    group = InProcessGroup(load_tiny_model(), 2, prefix_index=PrefixIndex(400, approximate=True))
    run(group, list(range(40)), EXACT["single_phase"])
    group.scheduler.submit(group.create_session([*range(32), 9, 9, 9, 5], EXACT["single_phase"]))
    group.step()
    assert group.scheduler.prefix_index.hit_requests == 1
    newcomer = BranchRunner(
        load_tiny_model(), max_num_seqs=group.runners[0].cache.data.shape[0], max_model_len=96
    )
    group.regroup([group.runners[1 - lost], newcomer])
    group.step()
    assert any(slot.digest for slot in group.agreed_checksums())


@pytest.mark.parametrize("kind", NEVER)
def test_what_caches_nothing_stores_nothing(kind: str) -> None:
    group = InProcessGroup(load_tiny_model(), 1, prefix_index=PrefixIndex(400, approximate=True))
    run(group, list(range(40)), NEVER[kind])
    run(group, list(range(40)), NEVER[kind])
    assert (group.scheduler.prefix_index.hit_requests, len(group.runners[0].slots.prefixes)) == (0, 0)


def test_a_worker_that_lacks_a_prefix_says_so() -> None:
    runner = BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=20)
    plan = Plan(
        1,
        0,
        (1, 2, 127),
        (Branch(((2, 2), (3, 3)), range(2, 3), to_stage=(range(2),)),),
        (),
        stage_shared=True,
    )
    with pytest.raises(ProtocolError, match="prefix 5 is not stored"):
        runner.execute(
            StepPlan(0, 1, (ScheduledRequest(1, 0, plan, (0,), stored_prefix=(StoredPrefix(5, range(2)),)),))
        )


def test_a_step_that_failed_on_a_worker_is_made_again() -> None:
    """Between the two a request ends: what the first one saved and evicted does not matter."""
    group = InProcessGroup(load_tiny_model("sdar-tiny-3l"), 1, prefix_index=PrefixIndex(30))
    wanted = EXACT["block_diffusion"]
    run(group, list(range(24)), wanted)
    request = group.scheduler.submit(group.create_session([99] * 24, wanted))
    group.step()  # makes room for what its next step saves
    assert group.scheduler.prefix_index.pending_evictions
    group.evaluate(group.scheduler.plan(1))  # and its reports are lost
    group.scheduler.cancel(request)
    group.scheduler.drain()
    alone, _ = run(InProcessGroup(load_tiny_model("sdar-tiny-3l"), 1), list(range(24)), wanted)
    assert run(group, list(range(24)), wanted)[0] == alone
    check(group)


# The index alone


@st.composite
def hashes_of_texts(draw: st.DrawFn) -> PrefixHashes:
    """Prefixes of few texts, so that many begin alike."""
    ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
    return {2 * at + 2: bytes(ids[: at + 1]) for at in range(len(ids))}


@pytest.mark.medium
@checks(max_examples=150)
@given(
    st.integers(1, 40),
    st.lists(
        st.tuples(st.sampled_from(["insert", "touch", "cancel", "evict", "clear"]), hashes_of_texts()),
        max_size=40,
    ),
)
def test_whatever_happens_the_index_is_whole(positions: int, events: list[tuple[str, PrefixHashes]]) -> None:
    index = PrefixIndex(positions)
    texts: dict[int, bytes] = {}
    there: set[int] = set()
    for event, hashes in events:
        parts = index.match(hashes)
        at, stop = 0, max(hashes)
        for part in parts:  # one behind the other, each from something that was stored with the same ids
            assert part.span.start == at < part.span.stop <= stop
            at = part.span.stop
            assert part.prefix_id in there
            assert texts[part.prefix_id][: at // 2] == hashes[stop][: at // 2]
        if event == "touch":
            index.touch(parts)
        elif event in ("insert", "cancel"):
            entry = index.reserve(hashes)
            if entry is not None:
                assert (entry.span.start, entry.span.stop) == (at, stop)
                texts[entry.prefix_id] = hashes[stop]
                there.add(entry.prefix_id)
                index.insert(entry) if event == "insert" else index.cancel_reservation(entry)
            else:
                assert at <= stop
        elif event == "evict":
            there -= set(index.pending_evictions)
            index.confirm_evictions(index.pending_evictions)
        else:
            index.clear()
            there.clear()
        assert index._used_positions == sum(len(node.span) for node in index._ready.values()) <= positions
        assert set(index._ready) == there - set(index.pending_evictions)
        for node in index._ready.values():
            assert node.children == sum(other.parent is node for other in index._ready.values())


def test_the_least_recently_used_makes_room() -> None:
    index = PrefixIndex(12)

    def hashes(text: bytes) -> PrefixHashes:
        return {4: text}

    for text in (b"a", b"b", b"c"):
        entry = index.reserve(hashes(text))
        assert entry is not None
        index.insert(entry)
    index.touch(index.match(hashes(b"a")))
    assert index.reserve(hashes(b"d")) is not None
    assert [bool(index.match(hashes(text))) for text in (b"a", b"b", b"c", b"d")] == [
        True,
        False,
        True,
        False,
    ]
    assert index.reserve(hashes(b"d")) is None  # it is on its way
    assert index.reserve({13: b"e"}) is None  # it would never fit
