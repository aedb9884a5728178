"""Slots: whose each slot of a worker's cache is, the K/V of its next commit, and stored prefixes.

Words for a K/V row on its way: it is computed in a *lane* (the rows of a branch in a step), *staged* where a lane keeps
it for a commit in the next step, and part of a *payload* where it is copied or sent: a flat tensor with the K/V and the
boundary rows of commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from lopa_ray.errors import ProtocolError
from lopa_ray.execution.kv_cache import KVCache, SlotState
from lopa_ray.execution.staging import StagedCommit, StagedLane, StagingBuffer
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.plan_inputs import ConditionedInputs


class PayloadTransfer(Protocol):
    """A worker's connection to the other workers of its group."""

    @property
    def rank(self) -> int:
        """The number of this worker, from 0 on."""

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        """Fill the payload of each source rank, flat [values] in the cache's dtype, with what that worker has in it.
        All workers call it with the same ranks in the same order. Raises TransferError if one does not arrive; then
        none may be used."""


class Slots:
    """The slots of one worker. The cache has their K/V; this decides what of it stays, and finds the K/V of commits. A
    commit that a slot has from an attempt at the same step is not carried out again."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.staging = StagingBuffer()
        self.prefixes: dict[int, Tensor] = {}
        """The payloads that are stored after their requests have ended, by the ids of `PrefixIndex`: K/V of a span and
        its last hidden row (see `KVCache.boundary`)."""

    def assign(self, plan: StepPlan) -> None:
        """Drop the prefixes that a coming step drops, and assign slots to its requests."""
        for prefix_id in plan.evict:
            self.prefixes.pop(prefix_id, None)  # a step may be repeated
        for scheduled in plan.requests:
            self._assign(scheduled.slot, scheduled.request_id)

    def payloads(self, plan: StepPlan, transfer: PayloadTransfer | None) -> dict[int, Tensor]:
        """Rank of a source → one payload of all commits that bring K/V from it, flat [values] in the cache's dtype:
        this worker's own is filled, the others are uninitialised. Raises ProtocolError without a transfer, or if K/V to
        send are not here."""
        by_source = plan.commits_by_source
        if not by_source:
            return {}
        if transfer is None:
            raise ProtocolError("a commit names a source worker, but K/V cannot be broadcast here")
        return {
            source: self.payload(requests)
            if source == transfer.rank
            else self._cache.empty_payload(sum(map(_positions, requests)), len(requests))
            for source, requests in by_source.items()
        }

    def payload(self, requests: Sequence[ScheduledRequest]) -> Tensor:
        """One payload of the requests' commits, flat [values] in the cache's dtype (see `KVCache.empty_payload`),
        staged or in the slot. Raises ProtocolError if this worker does not have their K/V."""
        commits = []
        for scheduled in requests:
            if (commit := scheduled.plan.commit) is not None:
                lane = None if self._is_carried_out(scheduled) else self._staged(scheduled)
                commits.append((scheduled.slot, commit.spans, lane))
        return self._cache.gather_payload(commits)

    def commits(self, plan: StepPlan, payloads: Mapping[int, Tensor]) -> list[StagedCommit]:
        """The commits to carry out: of K/V staged here, then of K/V in payloads (see `payloads`), which may still be
        on their way. A source commits what it sends as the other workers do. Raises ProtocolError if K/V are not
        staged."""
        commits = [
            StagedCommit(self._staged(scheduled), scheduled.slot, scheduled.plan.commit.spans)
            for scheduled in plan.requests
            if scheduled.plan.commit is not None
            and scheduled.source_rank is None
            and not self._is_carried_out(scheduled)
        ]
        for source, requests in plan.commits_by_source.items():
            step, row = self._cache.split_payload(payloads[source], len(requests)), 0
            for boundary_row, scheduled in enumerate(requests):
                rows = range(row, row := row + _positions(scheduled))
                if scheduled.plan.commit is not None and not self._is_carried_out(scheduled):
                    lane = StagedLane(step, rows, boundary_row, start=0)
                    commits.append(StagedCommit(lane, scheduled.slot, scheduled.plan.commit.spans))
        return commits

    def retain(self, plan: StepPlan) -> None:
        """After the commits, drop what was staged, save prefixes of what is committed, and keep what the plans read.
        Raises ProtocolError if a slot lacks what a plan reads, or if a stored prefix is not here."""
        for scheduled in plan.requests:
            slot, commit = scheduled.slot, scheduled.plan.commit
            if commit is not None:
                self._cache.last_commit[slot] = commit.step
                # Every staged branch keeps the staged rows of its whole step in memory. A step that is made in parts
                # has staged some in those before.
                self.staging.retain_step(slot, scheduled.plan.step)
                if scheduled.save_prefix is not None:
                    entry = scheduled.save_prefix
                    self.prefixes[entry.prefix_id] = self._cache.read_payload(slot, (entry.span,))
            elif not scheduled.plan.cached:
                # A request that begins anew in the slot that it gave away carries out its commits once more.
                self._cache.last_commit[slot] = 0
            self._cache.retain(slot, scheduled.plan.cached)
            for part in scheduled.stored_prefix:  # not marked as committed
                if part.prefix_id not in self.prefixes:
                    stored = sorted(self.prefixes)
                    raise ProtocolError(f"prefix {part.prefix_id} is not stored; stored: {stored}")
                self._cache.copy_payload(slot, (part.span,), self.prefixes[part.prefix_id])
            last, inputs = self._cache.last_commit[slot], scheduled.plan.inputs
            if isinstance(inputs, ConditionedInputs) and inputs.step != last:
                raise ProtocolError(
                    f"slot {slot} has the self-conditioning of step {last}; "
                    f"the plan is conditioned on step {inputs.step}"
                )

    def reconcile(
        self, request_by_slot: Mapping[int, int], staged: Sequence[ScheduledRequest]
    ) -> tuple[bool, ...]:
        """Drop everything but the requests in flight (slot → request) and the staged K/V of their next commits, also
        stored prefixes, which new workers do not have. Returns for each of `staged`, the requests that staged a next
        commit, whether its K/V are here, staged or committed."""
        self.prefixes.clear()
        steps = {scheduled.slot: scheduled.plan.step for scheduled in staged}
        for slot in range(len(self._cache.request_ids)):
            self._assign(slot, request_by_slot.get(slot))
            self.staging.retain_step(slot, steps.get(slot))
        return tuple(self._has_staged(scheduled) for scheduled in staged)

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

    def _has_staged(self, scheduled: ScheduledRequest) -> bool:
        slot, plan = scheduled.slot, scheduled.plan
        branch = None if plan.stage_shared else scheduled.branch_indices[0]
        is_staged = self.staging.get(slot, plan.step, branch) is not None
        return is_staged or self._cache.last_commit[slot] == plan.step

    def _is_carried_out(self, scheduled: ScheduledRequest) -> bool:
        commit, slot = scheduled.plan.commit, scheduled.slot
        is_here = self._cache.request_ids[slot] == scheduled.request_id
        return commit is not None and is_here and self._cache.last_commit[slot] == commit.step

    def _staged(self, scheduled: ScheduledRequest) -> StagedLane:
        """The lane that is staged here for the request's commit. Raises ProtocolError if there is none."""
        commit = scheduled.plan.commit
        assert commit is not None
        staged = self.staging.get(scheduled.slot, commit.step, None if commit.shared else commit.branch)
        if staged is None:
            raise ProtocolError(
                f"request {scheduled.request_id}: nothing is staged for the commit of step {commit.step}"
            )
        return staged


def _positions(scheduled: ScheduledRequest) -> int:
    """How many positions a request's commit has."""
    return 0 if scheduled.plan.commit is None else sum(map(len, scheduled.plan.commit.spans))
