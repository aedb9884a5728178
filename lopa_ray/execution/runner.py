"""BranchRunner: one model replica and its KV cache. It carries out one worker's part of a step.

    slots, broadcast K/V  →  pack (numpy)  →  one copy to the device  →  staged K/V are committed
    →  one packed forward of all branches  →  stage  →  score  →  one copy to the host

It does not depend on the decoder. The plans contain all inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.errors import ProtocolError
from lopa_ray.execution.attention import AttentionBackend, LaneAttention
from lopa_ray.execution.kv_cache import KVCache, SlotState, payload_to_bytes
from lopa_ray.execution.lane import Lane, lanes_of
from lopa_ray.execution.lm_head import LMHead
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.execution.prefix_store import PrefixStore
from lopa_ray.execution.staging import PendingCommit, StagedLane, StagedStep, StagingBuffer
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.row_scores import SCORE_COLUMNS
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.protocol.plan import ScheduledRequest, Segment, Spans, StepPlan
from lopa_ray.protocol.slot_checksum import SlotChecksum
from lopa_ray.protocol.step_report import StepReport
from lopa_ray.protocol.vocabulary import Vocabulary

DEFAULT_ATTENTION: AttentionBackend = LaneAttention(sdpa)

BroadcastPayload: TypeAlias = Callable[[int, Tensor], None]
"""Takes the rank of the source and a payload. On every worker it fills the payload in place with that of the source."""


class BranchRunner:
    """Evaluates branches. Its state is the cache, the staged K/V for the next commits, and the stored prefixes."""

    def __init__(
        self,
        model: MaskPredictor,
        *,
        max_num_seqs: int,
        max_model_len: int,
        attention: AttentionBackend | None = None,
    ) -> None:
        """The cache has `max_num_seqs` slots of `max_model_len` positions.

        By default attention uses torch's scaled_dot_product_attention lane by lane. Raises CapacityError if the cache
        does not fit in memory.
        """
        config = model.config
        self.attention = attention or DEFAULT_ATTENTION
        self.model = model
        self.device = model.embed.weight.device
        self.cache = KVCache(
            model.shard_config, max_num_seqs, max_model_len, model.embed.weight.dtype, self.device
        )
        self.vocabulary = Vocabulary(
            config.vocab_size,
            config.mask_token_id,
            config.eos_token_id,
            config.stop_token_ids,
            config.shifted,
        )
        self._lm_head = LMHead(model)
        self.packing_options = PackingOptions(
            capacity=max_model_len,
            heads_per_kv_head=model.shard_config.num_heads // model.shard_config.num_kv_heads,
            vocab_size=config.vocab_size,
            mask_token_id=config.mask_token_id,
            eos_token_id=config.eos_token_id,
            shift=int(config.shifted),
            fuse_greedy=model.tp_group.size == 1,
            bucket=self.attention.bucket,
        )
        self._staging = StagingBuffer()
        self.prefix_store = PrefixStore(self.cache)

    @torch.inference_mode()
    def execute(self, plan: StepPlan, broadcast: BroadcastPayload | None = None) -> StepReport:
        """Carry out the commits in order, then evaluate this worker's branches.

        A commit is applied once per request and step, so a step can be repeated in a newer epoch. Raises ProtocolError
        if the cache or the staged K/V do not match the plans, and CapacityError for positions beyond a slot.
        """
        began = time.perf_counter()
        self.prefix_store.evict(plan.evict)
        for scheduled in plan.requests:
            self._assign_slot(scheduled.slot, scheduled.request_id)
            self._receive(scheduled, broadcast)
        commits = self._commits_of_staged(plan.requests)
        received = time.perf_counter()
        lanes = [lane for scheduled in plan.requests for lane in lanes_of(scheduled)]
        packing = Packing(lanes, commits, self.packing_options)
        columns = packing.to_device(self.device)
        packed = time.perf_counter()
        self.cache.write_staged(commits, columns.commit_rows, columns.commit_boundaries)
        for scheduled in plan.requests:
            self._retain(scheduled)
        commit_s = received - began + time.perf_counter() - packed
        if not lanes:
            return StepReport.without_branches(plan.epoch, plan.step, commit_s)
        rows, kv = self.forward(packing, columns)
        if kv is not None:
            self._staging.add_step(packing.lanes, packing.stage_ranges, StagedStep.gather(columns, rows, kv))
        scores = self.score(packing, columns, rows)
        self.model.tp_group.wait()
        branches, scored = packing.rows_to_score.report(scores.cpu().numpy(), SCORE_COLUMNS)
        forward_s = time.perf_counter() - began - commit_s
        return StepReport(plan.epoch, plan.step, branches, scored, commit_s, forward_s)

    # Commits

    def _assign_slot(self, slot: int, request_id: int | None) -> None:
        """Assign a slot to a request or to none, and empty it, unless it is the request's already."""
        if self.cache.request_ids[slot] != request_id:
            self.cache.reset(slot, request_id)
            self._staging.clear(slot)

    def _receive(self, scheduled: ScheduledRequest, broadcast: BroadcastPayload | None) -> None:
        """Take part in the broadcast of a commit that names its source, and commit the K/V that it brings."""
        if scheduled.plan.commit is None or scheduled.source_rank is None:
            return
        payload = self.payload_to_commit(scheduled)
        if broadcast is None:
            raise ProtocolError("a commit names a source worker, but K/V cannot be broadcast here")
        broadcast(scheduled.source_rank, payload)
        if not self._is_committed(scheduled):
            self.cache.write_payload(scheduled.slot, scheduled.plan.commit.spans, payload)
            self.cache.last_commit[scheduled.slot] = scheduled.plan.commit.step

    def _commits_of_staged(self, requests: Sequence[ScheduledRequest]) -> list[PendingCommit]:
        """The commits that name no source, and so are of K/V staged here, unless they were applied before."""
        return [
            PendingCommit(self._staged(scheduled), scheduled.slot, scheduled.plan.commit.spans)
            for scheduled in requests
            if scheduled.plan.commit is not None
            and scheduled.source_rank is None
            and not self._is_committed(scheduled)
        ]

    def _retain(self, scheduled: ScheduledRequest) -> None:
        """After the commit: drop what was staged, save a prefix of what is committed, and keep what the plan reads."""
        slot, commit = scheduled.slot, scheduled.plan.commit
        if commit is not None:
            self.cache.last_commit[slot] = commit.step
            self._staging.clear(slot)  # every staged branch keeps the staged rows of the whole step in memory
            if scheduled.save_prefix is not None:
                self.prefix_store.save(scheduled.save_prefix, slot)
        self.cache.retain(slot, scheduled.plan.cached)
        self.prefix_store.load(scheduled.stored_prefix, slot)

    def _is_committed(self, scheduled: ScheduledRequest) -> bool:
        """Whether the request's commit was applied before, in a step that is now repeated."""
        commit = scheduled.plan.commit
        is_here = self.cache.request_ids[scheduled.slot] == scheduled.request_id
        return commit is not None and is_here and self.cache.last_commit[scheduled.slot] == commit.step

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

    def payload_to_commit(self, scheduled: ScheduledRequest) -> Tensor:
        """The payload of the request's commit, flat [values] in the cache's dtype (see `KVCache.empty_payload`).

        It comes from staged K/V, or from the slot if the commit was already applied. Otherwise it is filled with NaN,
        to be overwritten by the broadcast. Raises ProtocolError if the request has no commit, or if it names no source
        worker and this worker has no K/V for it.
        """
        cache, slot, commit = self.cache, scheduled.slot, scheduled.plan.commit
        if commit is None:
            raise ProtocolError(f"request {scheduled.request_id} has no commit in step {scheduled.plan.step}")
        if self._is_committed(scheduled):
            return cache.read_payload(slot, commit.spans)
        branch = None if commit.shared else commit.branch
        if scheduled.source_rank is None or self._staging.get(slot, commit.step, branch) is not None:
            return cache.staged_payload(slot, commit.spans, self._staged(scheduled))
        # NaN makes the error visible if a source that lacks the K/V sends this payload.
        return cache.empty_payload(sum(map(len, commit.spans))).fill_(torch.nan)

    def export_payload(self, scheduled: ScheduledRequest) -> npt.NDArray[np.uint8]:
        """The payload of the request's commit as raw bytes, uint8 [bytes]. Raises as `payload_to_commit`."""
        return payload_to_bytes(self.payload_to_commit(scheduled))

    # Changes of membership

    def reconcile(
        self, request_by_slot: Mapping[int, int], pending_commits: Sequence[ScheduledRequest]
    ) -> tuple[bool, ...]:
        """Drop everything except the requests in flight (slot → request) and the staged K/V of their next commits.

        New workers have no stored prefixes, so every worker drops its own. `pending_commits` has, for each next commit,
        the scheduled request that staged its K/V. Returns for each whether its K/V are here, staged or committed.
        """
        self.prefix_store.clear()
        steps = {scheduled.slot: scheduled.plan.step for scheduled in pending_commits}
        for slot in range(len(self.cache.request_ids)):
            self._assign_slot(slot, request_by_slot.get(slot))
            self._staging.retain_step(slot, steps.get(slot))
        return tuple(self._has_payload(scheduled) for scheduled in pending_commits)

    def _has_payload(self, scheduled: ScheduledRequest) -> bool:
        slot, plan = scheduled.slot, scheduled.plan
        branch = None if plan.stage_shared else scheduled.branch_indices[0]
        is_staged = self._staging.get(slot, plan.step, branch) is not None
        return is_staged or self.cache.last_commit[slot] == plan.step

    def export_slots(self, request_by_slot: Mapping[int, int]) -> list[SlotState]:
        """The states of the slots of requests in flight (slot → request), for a worker that joins."""
        return [
            self.cache.export_slot(slot)
            for slot, request_id in request_by_slot.items()
            if self.cache.request_ids[slot] == request_id
        ]

    def import_slots(self, states: Sequence[SlotState]) -> None:
        """Replace slots by their states on another worker."""
        for state in states:
            self.cache.import_slot(state)

    # The packed forward

    def forward(self, packing: Packing, columns: StepColumns[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Run the packed forward. Both results have the model's dtype.

        Returns the hidden rows of all lanes followed by the boundary rows of slots, [R + S, D], and the keys and values
        of all rows, [L, 2, R, K, E], or None if no lane stages K/V.
        """
        kv = None
        if packing.has_staged_rows:
            _, layers, two, heads, _, dim = self.cache.data.shape
            kv = self.cache.data.new_empty(layers, two, packing.rows_bucket, heads, dim)
        attention = self.attention.bind(self.cache, packing, columns)
        hidden = self.model(columns.ids, columns.positions, attention, kv)
        return torch.cat((hidden, self.cache.boundary)), kv

    def score(self, packing: Packing, columns: StepColumns[Tensor], rows: Tensor) -> Tensor:
        """See `LMHead.score`."""
        groups = packing.rows_to_score.groups
        if not groups:
            return torch.empty(0, dtype=torch.float64, device=self.device)
        return self._lm_head.score(groups, columns, rows)

    # Research and state

    @torch.inference_mode()
    def logits(
        self,
        ids: Sequence[int],
        *,
        start: int = 0,
        segments: tuple[Segment, ...] | None = None,
        to_stage: Spans = (),
        slot: int = 0,
    ) -> Tensor:
        """Full logits of the span [start, start + len(ids)): fp32 [len(ids), V], one row per input, not shifted.

        The rows see the cached positions of the slot before the span, and the positions that `segments` allow (default:
        all positions up to the end of the span). The K/V of `to_stage` are committed afterwards. If `start` is 0, the
        slot is emptied first.
        """
        if start == 0:
            self.cache.reset(slot, -1)
        stop = start + len(ids)
        canvas = np.array(ids, np.int64)
        lane = Lane(slot, start, canvas, segments or ((stop, stop),), to_stage=to_stage)
        packing = Packing([lane], [], self.packing_options)
        columns = packing.to_device(self.device)
        rows, kv = self.forward(packing, columns)
        hidden = rows[: len(ids)]
        if kv is not None:
            staged = StagedLane(StagedStep.gather(columns, rows, kv), packing.stage_ranges[0], 0, start)
            self.cache.write_payload(slot, to_stage, self.cache.staged_payload(slot, to_stage, staged))
        most = self._lm_head.max_rows
        parts = [hidden[at : min(at + most, len(ids))] for at in range(0, len(ids), most)]
        logits = torch.cat([self._lm_head.full_logits(part) for part in parts])
        self.model.tp_group.wait()
        return logits

    @property
    def position_bytes(self) -> int:
        """Bytes of K/V per cached position."""
        return self.cache.data[0, :, :, :, 0].numel() * self.cache.data.element_size()

    def checksums(self) -> list[SlotChecksum]:
        """The checksum of every slot."""
        return [self.cache.checksum(slot) for slot in range(len(self.cache.request_ids))]
