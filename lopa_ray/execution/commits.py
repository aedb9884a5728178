"""Commits: where the K/V of a step's commits are, staged here, sent by another worker, or in the slot already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lopa_ray.errors import ProtocolError
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.payload_transfer import PayloadTransfer
from lopa_ray.execution.staging import PendingCommit, StagedLane, StagingBuffer
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan


class Commits:
    """Finds the K/V of commits. A commit that a slot has from an attempt at the same step is not carried out again."""

    def __init__(self, cache: KVCache, staging: StagingBuffer) -> None:
        self._cache = cache
        self._staging = staging

    def payloads(self, plan: StepPlan, transfer: PayloadTransfer | None) -> dict[int, Tensor]:
        """Rank of a source → one payload of all commits that bring K/V from it, flat [values] in the cache's dtype.

        This worker's own is filled, the others are uninitialised. Raises ProtocolError without a transfer, or if K/V
        that this worker is to send are not here.
        """
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
        """One payload of the requests' commits, flat [values] in the cache's dtype (see `KVCache.empty_payload`).

        The K/V are as this worker has them, staged or in the slot. Raises ProtocolError if it does not have them.
        """
        return self._cache.gather_payload(
            [
                (
                    scheduled.slot,
                    scheduled.plan.commit.spans,
                    None if self._is_carried_out(scheduled) else self._staged(scheduled),
                )
                for scheduled in requests
                if scheduled.plan.commit is not None
            ]
        )

    def pending(self, plan: StepPlan, payloads: Mapping[int, Tensor]) -> list[PendingCommit]:
        """The commits to carry out: of K/V staged here, then of those in payloads, which may still be on their way.

        `payloads`: see `payloads`, [values] in the cache's dtype each. A source commits what it sends as the other
        workers do. Raises ProtocolError if K/V are not staged.
        """
        commits = [
            PendingCommit(self._staged(scheduled), scheduled.slot, scheduled.plan.commit.spans)
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
                    commits.append(PendingCommit(lane, scheduled.slot, scheduled.plan.commit.spans))
        return commits

    def _is_carried_out(self, scheduled: ScheduledRequest) -> bool:
        """Whether the slot has the request's commit already, from a step that is now repeated."""
        commit, slot = scheduled.plan.commit, scheduled.slot
        is_here = self._cache.request_ids[slot] == scheduled.request_id
        return commit is not None and is_here and self._cache.last_commit[slot] == commit.step

    def _staged(self, scheduled: ScheduledRequest) -> StagedLane:
        """The lane that is staged here for the request's commit. Raises ProtocolError if there is none."""
        commit = scheduled.plan.commit
        assert commit is not None
        staged = self._staging.get(scheduled.slot, commit.step, None if commit.shared else commit.branch)
        if staged is None:
            raise ProtocolError(
                f"request {scheduled.request_id}: nothing is staged for the commit of step {commit.step}"
            )
        return staged


def _positions(scheduled: ScheduledRequest) -> int:
    """How many positions a request's commit has."""
    return 0 if scheduled.plan.commit is None else sum(map(len, scheduled.plan.commit.spans))
