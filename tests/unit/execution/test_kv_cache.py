"""The KV cache: what is committed, what payloads hold, and what a runner refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.errors import CapacityError, ProtocolError
from lopa_ray.execution.kv_cache import KVCache, merge_spans
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, StepPlan
from lopa_ray.protocol.slot_checksum import SlotChecksum
from support.tiny_model import load_tiny_model

MODEL = load_tiny_model()
CONFIG = MODEL.config


def cache(num_slots: int = 3, capacity: int = 20) -> KVCache:
    kv_cache = KVCache(CONFIG, num_slots, capacity, torch.float32, torch.device("cpu"))
    kv_cache.data.normal_(generator=torch.Generator().manual_seed(1))
    return kv_cache


def filled(kv_cache: KVCache, positions: int, seed: int = 0) -> torch.Tensor:
    return kv_cache.empty_payload(positions).normal_(generator=torch.Generator().manual_seed(seed))


def test_merge_spans():
    assert merge_spans(()) == ()
    assert merge_spans((range(4, 6), range(0, 2), range(2, 4))) == (range(0, 6),)
    assert merge_spans((range(0, 5), range(1, 2), range(7, 9))) == (range(0, 5), range(7, 9))


def test_a_payload_comes_back_as_it_was_written():
    kv_cache = cache()
    kv_cache.reset(1, request_id=7)
    spans = (range(0, 3), range(8, 10))
    payload = filled(kv_cache, 5)
    before = kv_cache.data.clone()
    kv_cache.write_payload(1, spans, payload)
    assert torch.equal(kv_cache.read_payload(1, spans), payload)
    assert kv_cache.committed[1] == spans
    step = kv_cache.split_payload(payload)
    assert torch.equal(kv_cache.boundary[1], step.boundaries[0])
    assert torch.equal(kv_cache.data[1, :, :, :, 8:10], step.kv[:, :, 3:].transpose(2, 3))
    untouched = torch.ones(kv_cache.data.shape[4], dtype=torch.bool)
    untouched[[0, 1, 2, 8, 9]] = False
    assert torch.equal(kv_cache.data[1][:, :, :, untouched], before[1][:, :, :, untouched])
    assert torch.equal(kv_cache.data[[0, 2]], before[[0, 2]])


def test_retain_keeps_only_what_is_there():
    kv_cache = cache()
    kv_cache.reset(0, 1)
    kv_cache.write_payload(0, (range(0, 6),), filled(kv_cache, 6))
    kv_cache.retain(0, (range(1, 3), range(4, 6)))
    assert kv_cache.committed[0] == (range(1, 3), range(4, 6))
    for span in (range(0, 2), range(2, 5), range(5, 7)):
        with pytest.raises(ProtocolError, match=f"positions {span.start} to {span.stop} are not cached"):
            kv_cache.retain(0, (span,))
    assert kv_cache.committed[0] == (range(1, 3), range(4, 6))
    kv_cache.retain(0, ())
    assert kv_cache.committed[0] == ()


def test_reset_hands_an_empty_slot_over():
    kv_cache = cache()
    kv_cache.write_payload(2, (range(0, 4),), filled(kv_cache, 4))
    kv_cache.last_commit[2] = 3
    kv_cache.reset(2, 9)
    assert (kv_cache.request_ids[2], kv_cache.committed[2], kv_cache.last_commit[2]) == (9, (), 0)


def test_the_checksum_covers_owner_spans_keys_values_and_boundary_and_no_scratch():
    def filled_cache() -> KVCache:
        fresh = cache()
        fresh.reset(0, 1)
        fresh.write_payload(0, (range(0, 4),), filled(fresh, 4))
        return fresh

    reference = filled_cache().checksum(0)
    assert filled_cache().checksum(0) == reference
    scratch = filled_cache()
    scratch.data[0, :, :, :, 4:] += 1
    assert scratch.checksum(0) == reference
    for change in ("key", "value", "boundary", "spans", "owner"):
        other = filled_cache()
        if change in ("key", "value"):
            other.data[0, -1, ("key", "value").index(change), -1, 3, -1] += 1e-6
        elif change == "boundary":
            other.boundary[0, 0] += 1e-6
        elif change == "spans":
            other.retain(0, (range(0, 3),))
        else:
            other.request_ids[0] = 2
        assert other.checksum(0) != reference, change


def test_heads_begin_at_64_bytes_in_every_slot():
    for capacity in (1, 20, 33):
        odd = replace(CONFIG, head_dim=14)
        kv_cache = KVCache(odd, 3, capacity, torch.float32, torch.device("cpu"))
        assert kv_cache.capacity == capacity
        assert kv_cache.data.shape[4] >= capacity
        for slot in range(3):
            keys, values = kv_cache.layer_views(slot, 1)
            assert all(head.data_ptr() % 64 == 0 for part in (keys, values) for head in part)


# What a runner asks of its cache


def plan(**changes: object) -> Plan:
    first = Plan(
        step=1,
        start=0,
        canvas=(1, 2, 127, 127),
        branches=(Branch(((4, 4),), range(2, 4), to_stage=(range(0, 2),)),),
        cached=(),
    )
    return replace(first, **changes)


def step(runner: BranchRunner, planned: Plan, request: int = 1, source_rank: int | None = None) -> None:
    runner.execute(StepPlan(0, planned.step, (ScheduledRequest(request, 0, planned, (0,), source_rank),)))


SECOND = plan(
    step=2,
    start=2,
    canvas=(127, 127),
    branches=(Branch(((4, 4),), range(2, 4)),),
    cached=(range(0, 2),),
    commit=Commit(1, 0, (range(0, 2),), shared=False),
)


@pytest.fixture
def runner() -> BranchRunner:
    return BranchRunner(MODEL, max_num_seqs=1, max_model_len=10)


def test_a_commit_needs_something_staged(runner):
    with pytest.raises(ProtocolError, match="nothing is staged for the commit of step 1"):
        step(runner, SECOND)
    step(runner, plan())
    with pytest.raises(ProtocolError, match="nothing is staged"):
        step(runner, replace(SECOND, commit=Commit(1, 1, (range(0, 2),), shared=False)))
    with pytest.raises(ProtocolError, match="cannot be broadcast here"):
        step(runner, SECOND, source_rank=0)


def test_a_commit_is_carried_out_once(runner):
    step(runner, plan())
    step(runner, SECOND)
    once = runner.checksums()
    assert once[0].spans == (range(0, 2),)
    for _ in range(2):
        step(runner, SECOND)
        assert runner.checksums() == once


def test_a_worker_without_the_winner_hands_out_no_stray_memory(runner):
    step(runner, plan())
    lost = replace(SECOND, commit=Commit(1, 1, (range(0, 2),), shared=False))
    with pytest.raises(ProtocolError, match="nothing is staged"):
        runner.slots.payload([ScheduledRequest(1, 0, lost, (0,), source_rank=0)])
    before = runner.slots.payload([ScheduledRequest(1, 0, SECOND, (0,), source_rank=0)])
    step(runner, SECOND)
    after = runner.slots.payload([ScheduledRequest(1, 0, SECOND, (0,), source_rank=0)])
    assert torch.equal(before, after)


def test_what_another_request_staged_is_never_committed(runner):
    step(runner, plan())
    with pytest.raises(ProtocolError, match="nothing is staged"):
        step(runner, SECOND, request=2)


def test_a_plan_cannot_read_what_is_not_cached(runner):
    with pytest.raises(ProtocolError, match="not cached"):
        step(runner, replace(SECOND, commit=None))


def test_a_slot_has_an_end(runner):
    long = plan(canvas=(1, 2) + (127,) * 9, branches=(Branch(((11, 11),), range(2, 4)),))
    with pytest.raises(CapacityError, match="11 positions do not fit a slot of 10"):
        step(runner, long)
    step(runner, plan(canvas=(1, 2) + (127,) * 8, branches=(Branch(((10, 10),), range(2, 10)),)))


@pytest.mark.parametrize("capacity", [2**40, 2**55, 2**65], ids=["no memory", "no size", "no integer"])
def test_a_cache_that_does_not_fit_says_which_settings_to_lower(capacity: int) -> None:
    with pytest.raises(CapacityError, match=r"does not fit; lower max_num_seqs or max_model_len \(.+\)"):
        cache(capacity=capacity)


def test_a_device_without_memory_is_too_small_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    raise_from_zeros(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB."))
    with pytest.raises(
        CapacityError, match=r"does not fit; .* \(CUDA out of memory\. Tried .* 80\.00 GiB\.\)"
    ):
        cache()


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: unspecified launch failure"), TypeError("a tuple")]
)
def test_another_error_of_torch_is_not_taken_for_a_lack_of_memory(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_from_zeros(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        cache()
    assert raised.value is error


def raise_from_zeros(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def zeros(*arguments: object, **keywords: object) -> None:
        raise error

    monkeypatch.setattr(torch, "zeros", zeros)


def test_logits_behind_kept_spans_equal_those_of_one_forward(runner):
    """Block-causal, so that what is cached does not see what follows."""
    ids = [3, 5, 8, 13, 21, 34]
    whole = runner.logits(ids, segments=((2, 2), (4, 4), (6, 6)))
    runner.logits(ids[:2], to_stage=(range(0, 2),))
    runner.logits(ids[2:4], start=2, to_stage=(range(2, 4),))
    last = runner.logits(ids[4:], start=4)
    assert whole.shape == (6, CONFIG.vocab_size)
    torch.testing.assert_close(last, whole[4:], atol=1e-4, rtol=0)
    assert not torch.allclose(runner.logits(ids)[:2], whole[:2], atol=1e-3)


def test_checksums_agree_exactly_or_within_a_tolerance_in_magnitude():
    one = SlotChecksum(1, (range(3),), "a", 100.0)
    assert one.agrees(one)
    near = replace(one, digest="b", magnitude=100.01)
    assert not one.agrees(near)
    assert one.agrees(near, tolerance=1e-3)
    assert not one.agrees(replace(near, magnitude=101.0), tolerance=1e-3)
    assert not one.agrees(replace(one, spans=(range(4),)), tolerance=1.0)


def test_what_is_staged_goes_once_it_is_committed() -> None:
    """The rows of a whole step hang on each of its lanes."""
    runner = BranchRunner(load_tiny_model(), max_num_seqs=2, max_model_len=64)
    mask = runner.vocabulary.mask_token_id
    first = plan_of(mask, 3, 16, start=0, step=1, staged=8)
    second = plan_of(mask, 3, 16, start=8, step=2, committed=8)
    runner.execute(step_of(runner, [first, first]))
    held = [runner.slots.staging.get(slot, 1, 2) for slot in range(2)]
    assert held[0] is not None and held[1] is not None and held[0].step is held[1].step
    runner.execute(step_of(runner, [second]))
    assert runner.slots.staging.get(0, 1, 2) is None and runner.slots.staging.get(1, 1, 2) is held[1]
    # The same step once more finds the K/V in the slot.
    before = runner.cache.checksum(0)
    runner.execute(step_of(runner, [second]))
    assert runner.cache.checksum(0) == before
