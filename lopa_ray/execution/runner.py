"""BranchRunner: one model replica and its KV cache; carries out one worker's part of a step.

    commit what the plans order  →  one packed forward of all branches  →  stage  →  score

It knows no decoder: everything comes from the plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.errors import CapacityError, ProtocolError
from lopa_ray.execution.attention import PackedSequence, SlotAttention
from lopa_ray.execution.attention_kernels import AttentionKernel, sdpa
from lopa_ray.execution.kv_cache import KVCache, SlotChecksum, SlotState
from lopa_ray.execution.lm_head import LMHead, RowToScore, padded_rows
from lopa_ray.execution.prefix_store import PrefixStore
from lopa_ray.execution.scheduled_branch import ScheduledBranch, scheduled_branches
from lopa_ray.execution.staging import StagingBuffer
from lopa_ray.model.transformer import Transformer
from lopa_ray.protocol.plan import ScheduledRequest, Segment, Spans, StepPlan
from lopa_ray.protocol.report import BRANCH_COLUMNS, ScoredRows, StepReport
from lopa_ray.protocol.vocabulary import Vocabulary

WARM_UP_ROWS = (48, 16)
"""Of the forwards that compile layers: int8 products of few rows have graphs of their own."""

BroadcastPayload: TypeAlias = Callable[[int, Tensor], None]
"""(rank of the source, payload): fills the payload in place, on every worker, with that of the source."""


class BranchRunner:
    """Evaluates branches. All state is the cache and what is staged for the next commit."""

    def __init__(
        self,
        model: Transformer,
        *,
        max_num_seqs: int,
        max_model_len: int,
        unpadded_vocab_size: int | None = None,
        kernel: AttentionKernel = sdpa,
    ) -> None:
        """A slot has `max_model_len` positions. Ids from `unpadded_vocab_size` on (padding) are never chosen."""
        config = model.config
        self.kernel = kernel
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
        self._lm_head = LMHead(model, unpadded_vocab_size)
        self._shift = int(config.shifted)
        self._staging = StagingBuffer()
        self.prefix_store = PrefixStore(self.cache)

    @torch.inference_mode()
    def execute(self, plan: StepPlan, broadcast: BroadcastPayload | None = None) -> StepReport:
        """Carry out the commits, in order, then evaluate this worker's branches.

        Commits are applied once per request and step, so a step may be repeated under a newer
        epoch. Raises ProtocolError if the cache does not hold what the plans presuppose, and
        CapacityError for positions beyond a slot.
        """
        began = time.perf_counter()
        self.prefix_store.evict(plan.evict)
        for scheduled in plan.requests:
            self._commit(scheduled, broadcast)
        for scheduled in plan.requests:
            self.prefix_store.load(scheduled.stored_prefix, scheduled.slot)
        committed = time.perf_counter()
        branches = [branch for scheduled in plan.requests for branch in scheduled_branches(scheduled)]
        if not branches:
            return StepReport.without_branches(plan.epoch, plan.step, committed - began)
        hidden, starts, payloads = self._forward([branch.sequence for branch in branches])
        for branch, payload in zip(branches, payloads, strict=True):
            if payload is not None:
                self._staging.add(branch.request.slot, branch.request.plan.step, branch.index, payload)
        table, rows = self._score(branches, hidden, starts)
        forward_s = time.perf_counter() - committed
        return StepReport(plan.epoch, plan.step, table, rows, committed - began, forward_s)

    # Commits

    def _commit(self, scheduled: ScheduledRequest, broadcast: BroadcastPayload | None) -> None:
        """Bring the slot to the state that the plan presupposes."""
        cache, slot, commit = self.cache, scheduled.slot, scheduled.plan.commit
        if cache.request_ids[slot] != scheduled.request_id:
            cache.reset(slot, scheduled.request_id)
            self._staging.clear(slot)
        if commit is not None:
            fresh = cache.last_commit[slot] != commit.step
            if scheduled.source_rank is not None or fresh:
                payload = self.payload_to_commit(scheduled)
                if scheduled.source_rank is not None:
                    if broadcast is None:
                        raise ProtocolError(
                            "a commit names a source worker, but K/V cannot be broadcast here"
                        )
                    broadcast(scheduled.source_rank, payload)
                if fresh:
                    cache.write_payload(slot, commit.spans, payload)
                    cache.last_commit[slot] = commit.step
            if scheduled.save_prefix is not None:
                self.prefix_store.save(scheduled.save_prefix, slot)
        cache.retain(slot, scheduled.plan.cached)

    def payload_to_commit(self, scheduled: ScheduledRequest) -> Tensor:
        """What this worker has for the request's commit: staged, committed already, or an empty payload to fill.

        Raises ProtocolError if no source is named and nothing is there.
        """
        commit = scheduled.plan.commit
        if commit is None:
            raise ProtocolError(f"request {scheduled.request_id} has no commit in step {scheduled.plan.step}")
        if (
            self.cache.request_ids[scheduled.slot] == scheduled.request_id
            and self.cache.last_commit[scheduled.slot] == commit.step
        ):
            return self.cache.read_payload(scheduled.slot, commit.spans)
        staged = self._staging.get(scheduled.slot, commit.step, None if commit.shared else commit.branch)
        if staged is not None:
            return staged
        if scheduled.source_rank is None:
            raise ProtocolError(
                f"request {scheduled.request_id}: nothing is staged for the commit of step {commit.step}"
            )
        # NaN, so that a source with nothing to send cannot pass off stray memory as K/V.
        return self.cache.empty_payload(sum(map(len, commit.spans))).fill_(torch.nan)

    # Changes of membership

    def reconcile(
        self, request_by_slot: Mapping[int, int], pending_commits: Sequence[ScheduledRequest]
    ) -> tuple[bool, ...]:
        """Drop all but the requests in flight (slot → request) and what is staged for their next commits.
        New workers have no stored prefixes, so every worker drops its own.

        `pending_commits`: per such commit, the scheduled request that staged its K/V. Returns for each whether its
        K/V are here, staged or committed.
        """
        self.prefix_store.clear()
        steps = {scheduled.slot: scheduled.plan.step for scheduled in pending_commits}
        for slot, previous_id in enumerate(self.cache.request_ids):
            request_id = request_by_slot.get(slot)
            if request_id != previous_id:
                self.cache.reset(slot, request_id)
                self._staging.clear(slot)
            self._staging.retain_step(slot, steps.get(slot))
        return tuple(self._has_payload(scheduled) for scheduled in pending_commits)

    def _has_payload(self, scheduled: ScheduledRequest) -> bool:
        slot, plan = scheduled.slot, scheduled.plan
        if self.cache.last_commit[slot] == plan.step:
            return True
        branch = None if plan.stage_shared else scheduled.branch_indices[0]
        return self._staging.get(slot, plan.step, branch) is not None

    def export_slots(self, request_by_slot: Mapping[int, int]) -> list[SlotState]:
        """The slots of requests in flight (slot → request), for a worker that joins."""
        return [
            self.cache.export_slot(slot)
            for slot, request_id in request_by_slot.items()
            if self.cache.request_ids[slot] == request_id
        ]

    def import_slots(self, states: Sequence[SlotState]) -> None:
        """Take over slots as another worker has them."""
        for state in states:
            self.cache.import_slot(state)

    # The packed forward

    def _forward(self, sequences: list[PackedSequence]) -> tuple[Tensor, list[int], list[Tensor | None]]:
        """Hidden rows [R, D] of all sequences, the first row of each, and what each one staged."""
        ids: list[int] = []
        positions: list[int] = []
        starts: list[int] = []
        for sequence in sequences:
            reach = max([sequence.stop, *(kv_stop for _, kv_stop in sequence.segments)])
            if reach > self.cache.capacity:
                raise CapacityError(
                    f"{reach} positions do not fit a slot of {self.cache.capacity}; raise max_model_len "
                    "or shorten the request"
                )
            starts.append(len(ids))
            ids += sequence.ids
            positions += range(sequence.start, sequence.stop)
        padding = [0] * (padded_rows(max(1, len(ids))) - len(ids))
        attention = SlotAttention(self.cache, sequences, self.kernel)
        hidden: Tensor = self.model(
            torch.tensor(ids + padding, device=self.device),
            torch.tensor(positions + padding, device=self.device),
            attention,
        )
        for sequence, start, payload in zip(sequences, starts, attention.staged, strict=True):
            if payload is not None:
                boundary = self.cache.split_payload(payload)[1]
                at = sequence.to_stage[0].stop - 1 - sequence.start
                boundary.copy_(hidden[start + at] if at >= 0 else self.cache.boundary[sequence.slot])
        return hidden, starts, attention.staged

    # Scores

    def _score(
        self, branches: list[ScheduledBranch], hidden: Tensor, starts: list[int]
    ) -> tuple[npt.NDArray[np.int64], ScoredRows]:
        """The branches and rows of a `StepReport`."""
        table, rows = [], []
        for branch, start in zip(branches, starts, strict=True):
            scored = [
                self._row_to_score(p, branch, start) for p in branch.scored(self.vocabulary.mask_token_id)
            ]
            if branch.index >= 0:
                plan = branch.request.plan
                width = plan.sampling_params.top_logprobs
                table.append((branch.request.request_id, plan.step, branch.index, len(scored), width))
            rows += scored
        scores = self._lm_head.score(rows, hidden, self.cache.boundary)
        return np.array(table, np.int64).reshape(-1, BRANCH_COLUMNS), scores

    def _row_to_score(self, position: int, branch: ScheduledBranch, start: int) -> RowToScore:
        """With shifted logits row p - 1 decides position p; left of the input that is the slot's boundary row.

        `start`: the sequence's first row.
        """
        plan, sequence = branch.request.plan, branch.sequence
        at = position - self._shift
        hidden_index = start + at - sequence.start if at >= sequence.start else -1 - sequence.slot
        bitmask = plan.token_bitmask(plan.branches[branch.index], position)
        return RowToScore(hidden_index, position, plan.step, plan.sampling_params, bitmask)

    # Research and state

    def warm_up(self) -> None:
        """Compile layers now, before any request waits: a first step that takes minutes would pass for a hung worker.
        All shards of a model have to call this together."""
        for rows in WARM_UP_ROWS:
            self.logits([0] * min(rows, self.cache.capacity))
        self.cache.reset(0, None)

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
        """Full logits of a span: fp32 [len(ids), V], row by row as the model gives them (not shifted).

        The span [start, start + len(ids)) is fed behind what the slot has cached; `segments`
        says what its rows see (default: everything up to the span's end). The K/V of `to_stage`
        enters the cache afterwards. With `start` 0 the slot is taken over, empty.
        """
        if start == 0:
            self.cache.reset(slot, -1)
        stop = start + len(ids)
        hidden, _, (payload,) = self._forward(
            [PackedSequence(slot, start, list(ids), segments or ((stop, stop),), to_stage)]
        )
        if payload is not None:
            self.cache.write_payload(slot, to_stage, payload)
        most = self._lm_head.max_rows
        parts = [hidden[at : min(at + most, len(ids))] for at in range(0, len(ids), most)]
        logits = torch.cat([self._lm_head.full_logits(part)[: len(part)] for part in parts])
        self.model.tp_group.wait()
        return logits

    @property
    def position_bytes(self) -> int:
        """Bytes of K/V per cached position."""
        return self.cache.data[0, :, :, :, 0].numel() * self.cache.data.element_size()

    def checksums(self) -> list[SlotChecksum]:
        """Per slot: request, committed spans, and a hash of their K/V and boundary row."""
        return [self.cache.checksum(slot) for slot in range(len(self.cache.request_ids))]
