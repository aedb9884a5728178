"""Slots: whose each slot of a worker's cache is, the K/V that are staged for its next commit, and stored prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lopa_ray.execution.commits import Commits
from lopa_ray.execution.kv_cache import KVCache, SlotState
from lopa_ray.execution.prefix_store import PrefixStore
from lopa_ray.execution.staging import StagingBuffer
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan


class Slots:
    """The slots of one worker. The cache has their K/V; this decides what of it stays."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.staging = StagingBuffer()
        self.commits = Commits(cache, self.staging)
        self.prefix_store = PrefixStore(cache)

    def assign(self, plan: StepPlan) -> None:
        """Before a step: drop the prefixes that it drops, and assign slots to its requests."""
        self.prefix_store.evict(plan.evict)
        for scheduled in plan.requests:
            self._assign(scheduled.slot, scheduled.request_id)

    def retain(self, plan: StepPlan) -> None:
        """After the commits: drop what was staged, save prefixes of what is committed, and keep what the plans read."""
        for scheduled in plan.requests:
            self._retain(scheduled)

    def reconcile(
        self, request_by_slot: Mapping[int, int], pending_commits: Sequence[ScheduledRequest]
    ) -> tuple[bool, ...]:
        """Drop everything except the requests in flight (slot → request) and the staged K/V of their next commits.

        New workers have no stored prefixes, so every worker drops its own. `pending_commits` has, for each next commit,
        the scheduled request that staged its K/V. Returns for each whether its K/V are here, staged or committed.
        """
        self.prefix_store.clear()
        steps = {scheduled.slot: scheduled.plan.step for scheduled in pending_commits}
        for slot in range(len(self._cache.request_ids)):
            self._assign(slot, request_by_slot.get(slot))
            self.staging.retain_step(slot, steps.get(slot))
        return tuple(self._has_payload(scheduled) for scheduled in pending_commits)

    def export(self, request_by_slot: Mapping[int, int]) -> list[SlotState]:
        """The states of the slots of requests in flight (slot → request), for a worker that joins."""
        return [
            self._cache.export_slot(slot)
            for slot, request_id in request_by_slot.items()
            if self._cache.request_ids[slot] == request_id
        ]

    def _assign(self, slot: int, request_id: int | None) -> None:
        """Assign a slot to a request or to none, and empty it, unless it is the request's already."""
        if self._cache.request_ids[slot] != request_id:
            self._cache.reset(slot, request_id)
            self.staging.clear(slot)

    def _retain(self, scheduled: ScheduledRequest) -> None:
        slot, commit = scheduled.slot, scheduled.plan.commit
        if commit is not None:
            self._cache.last_commit[slot] = commit.step
            # Every staged branch keeps the staged rows of its whole step in memory. A step that is made in parts has
            # staged some in those before.
            self.staging.retain_step(slot, scheduled.plan.step)
            if scheduled.save_prefix is not None:
                self.prefix_store.save(scheduled.save_prefix, slot)
        elif not scheduled.plan.cached:
            # A request that begins anew in the slot that it gave away carries out its commits once more.
            self._cache.last_commit[slot] = 0
        self._cache.retain(slot, scheduled.plan.cached)
        self.prefix_store.load(scheduled.stored_prefix, slot)

    def _has_payload(self, scheduled: ScheduledRequest) -> bool:
        slot, plan = scheduled.slot, scheduled.plan
        branch = None if plan.stage_shared else scheduled.branch_indices[0]
        is_staged = self.staging.get(slot, plan.step, branch) is not None
        return is_staged or self._cache.last_commit[slot] == plan.step
