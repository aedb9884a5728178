"""BranchRunner: one model replica and its KV cache; carries out one worker's part of a step.

    commit what the plans order  →  one packed forward of all branches  →  stage  →  score

It knows no decoder: everything comes from the plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from lopa_ray.errors import CapacityError, ProtocolError
from lopa_ray.execution.attention import Lane, SlotAttention
from lopa_ray.execution.attention_kernels import Kernel, sdpa
from lopa_ray.execution.kv_cache import KVCache, SlotChecksum, SlotState
from lopa_ray.execution.lm_head import MAX_HEAD_ROWS, Head, Row, padded_rows
from lopa_ray.execution.prefix_store import PrefixStore
from lopa_ray.execution.staging import Staging
from lopa_ray.model.transformer import Transformer
from lopa_ray.protocol.plan import ScheduledRequest, Segment, Spans, StepPlan
from lopa_ray.protocol.report import BranchReport, StepReport
from lopa_ray.protocol.vocabulary import Vocabulary

Exchange: TypeAlias = Callable[[int, Tensor], None]
"""(rank of the source, payload): fills the payload in place with the source's."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One lane of the packed forward and what it is for; `branch` -1 only stages K/V."""

    work: ScheduledRequest
    branch: int
    lane: Lane


class BranchRunner:
    """Evaluates branches. All state is the cache and what is staged for the next commit."""

    def __init__(
        self,
        model: Transformer,
        *,
        max_num_seqs: int,
        max_model_len: int,
        choosable: int | None = None,
        kernel: Kernel = sdpa,
    ) -> None:
        """`max_model_len` positions per slot; ids from `choosable` on (vocabulary padding) are never chosen."""
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
        self._head = Head(model, choosable)
        self._shift = int(config.shifted)
        self._staging = Staging()
        self.prefixes = PrefixStore(self.cache)

    @torch.inference_mode()
    def step(self, plan: StepPlan, exchange: Exchange | None = None) -> StepReport:
        """Carry out the commits, in order, then evaluate this worker's branches.

        Commits are applied once per request and step, so a step may be repeated under a newer
        epoch. Raises ProtocolError if the cache does not hold what the plans presuppose, and
        CapacityError for positions beyond a slot.
        """
        began = time.perf_counter()
        self.prefixes.forget(plan.evict)
        for work in plan.requests:
            self._commit(work, exchange)
        for work in plan.requests:
            self.prefixes.load(work.stored_prefix, work.slot)
        committed = time.perf_counter()
        evaluations = [evaluation for work in plan.requests for evaluation in self._evaluations(work)]
        if not evaluations:
            return StepReport(plan.epoch, plan.step, (), committed - began)
        hidden, starts, payloads = self._forward([evaluation.lane for evaluation in evaluations])
        for evaluation, payload in zip(evaluations, payloads, strict=True):
            if payload is not None:
                work = evaluation.work
                self._staging.put(work.slot, work.plan.step, evaluation.branch, payload)
        reports = tuple(self._score(evaluations, hidden, starts))
        return StepReport(plan.epoch, plan.step, reports, committed - began, time.perf_counter() - committed)

    # Commits

    def _commit(self, work: ScheduledRequest, exchange: Exchange | None) -> None:
        """Bring the slot to the state that the plan presupposes."""
        cache, slot, commit = self.cache, work.slot, work.plan.commit
        if cache.owner[slot] != work.request_id:
            cache.reset(slot, work.request_id)
            self._staging.clear(slot)
        if commit is not None:
            fresh = cache.last_commit[slot] != commit.step
            if work.source is not None or fresh:
                payload = self.payload(work)
                if work.source is not None:
                    if exchange is None:
                        raise ProtocolError(
                            "a commit names a source worker, but K/V cannot be exchanged here"
                        )
                    exchange(work.source, payload)
                if fresh:
                    cache.write(slot, commit.spans, payload)
                    cache.last_commit[slot] = commit.step
            if work.save_prefix is not None:
                self.prefixes.keep(work.save_prefix, slot)
        cache.cut(slot, work.plan.cached)

    def payload(self, work: ScheduledRequest) -> Tensor:
        """What this worker has for the work's commit: staged, committed already, or an empty payload to fill.

        Raises ProtocolError if nobody is named to receive from and nothing is there.
        """
        commit = work.plan.commit
        if commit is None:
            raise ProtocolError(f"request {work.request_id} has no commit in step {work.plan.step}")
        if (
            self.cache.owner[work.slot] == work.request_id
            and self.cache.last_commit[work.slot] == commit.step
        ):
            return self.cache.read(work.slot, commit.spans)
        staged = self._staging.find(work.slot, commit.step, None if commit.shared else commit.branch)
        if staged is not None:
            return staged
        if work.source is None:
            raise ProtocolError(
                f"request {work.request_id}: nothing is staged for the commit of step {commit.step}"
            )
        # NaN, so that a source with nothing to send cannot pass off stray memory as K/V.
        return self.cache.payload(sum(map(len, commit.spans))).fill_(torch.nan)

    # Changes of membership

    def settle(self, owners: Mapping[int, int], pending: Sequence[ScheduledRequest]) -> tuple[bool, ...]:
        """Forget all but the requests in flight (slot → request) and what is staged for their next commits.
        Newcomers have no stored prefixes, so nobody keeps any.

        `pending`: per such commit, the work that staged its K/V. Says of each whether they are
        here, staged or committed.
        """
        self.prefixes.clear()
        steps = {work.slot: work.plan.step for work in pending}
        for slot, had in enumerate(self.cache.owner):
            owner = owners.get(slot)
            if owner != had:
                self.cache.reset(slot, owner)
                self._staging.clear(slot)
            self._staging.keep_only(slot, steps.get(slot))
        return tuple(self._holds(work) for work in pending)

    def _holds(self, work: ScheduledRequest) -> bool:
        slot, plan = work.slot, work.plan
        if self.cache.last_commit[slot] == plan.step:
            return True
        branch = None if plan.stage_shared else work.branch_indices[0]
        return self._staging.find(slot, plan.step, branch) is not None

    def export(self, owners: Mapping[int, int]) -> list[SlotState]:
        """The slots of requests in flight (slot → request), for a worker that joins."""
        return [self.cache.export(slot) for slot, owner in owners.items() if self.cache.owner[slot] == owner]

    def adopt(self, states: Sequence[SlotState]) -> None:
        """Take over slots as another worker has them."""
        for state in states:
            self.cache.adopt(state)

    # The packed forward

    @staticmethod
    def _evaluations(work: ScheduledRequest) -> list[Evaluation]:
        """Where all branches stage the same K/V one of them does, or, without any, a lane of the kept span alone."""
        plan = work.plan
        evaluations: list[Evaluation] = []

        def add(index: int, ids: list[int], segments: tuple[Segment, ...], to_stage: Spans) -> None:
            ids = ids[work.start - plan.start :]
            segments = tuple(segment for segment in segments if segment[0] > work.start)
            evaluations.append(Evaluation(work, index, Lane(work.slot, work.start, ids, segments, to_stage)))

        for index in work.branch_indices:
            branch = plan.branches[index]
            add(
                index,
                plan.input_ids(branch),
                branch.segments,
                () if plan.stage_shared and evaluations else plan.to_stage,
            )
        if plan.to_stage and plan.stage_shared and not evaluations:
            stop = plan.to_stage[-1].stop
            segments = tuple(segment for segment in plan.branches[0].segments if segment[0] <= stop)
            add(-1, list(plan.canvas[: stop - plan.start]), segments, plan.to_stage)
        return evaluations

    def _forward(self, lanes: list[Lane]) -> tuple[Tensor, list[int], list[Tensor | None]]:
        """Hidden rows [R, D] of all lanes, the first row of each, and what each one staged."""
        ids: list[int] = []
        positions: list[int] = []
        starts: list[int] = []
        for lane in lanes:
            reach = max([lane.stop, *(kv_stop for _, kv_stop in lane.segments)])
            if reach > self.cache.capacity:
                raise CapacityError(
                    f"{reach} positions do not fit a slot of {self.cache.capacity}; raise max_model_len "
                    "or shorten the request"
                )
            starts.append(len(ids))
            ids += lane.ids
            positions += range(lane.start, lane.stop)
        padding = [0] * (padded_rows(max(1, len(ids))) - len(ids))
        attention = SlotAttention(self.cache, lanes, self.kernel)
        hidden: Tensor = self.model(
            torch.tensor(ids + padding, device=self.device),
            torch.tensor(positions + padding, device=self.device),
            attention,
        )
        for lane, start, payload in zip(lanes, starts, attention.staged, strict=True):
            if payload is not None:
                boundary = self.cache.split(payload)[1]
                at = lane.to_stage[0].stop - 1 - lane.start
                boundary.copy_(hidden[start + at] if at >= 0 else self.cache.boundary[lane.slot])
        return hidden, starts, attention.staged

    # Scores

    def _score(
        self, evaluations: list[Evaluation], hidden: Tensor, starts: list[int]
    ) -> list[tuple[int, BranchReport]]:
        rows: list[list[Row]] = []
        for evaluation, first in zip(evaluations, starts, strict=True):
            plan, lane = evaluation.work.plan, evaluation.lane
            masked = (
                p for p, token in enumerate(lane.ids, lane.start) if token == self.vocabulary.mask_token_id
            )
            scored = [p for p in masked if p in plan.scored] if evaluation.branch >= 0 else []
            rows.append([self._row(p, lane, first, evaluation) for p in scored])
        flat = self._head.score([row for lane_rows in rows for row in lane_rows], hidden, self.cache.boundary)
        reports = []
        at = 0
        for evaluation, lane_rows in zip(evaluations, rows, strict=True):
            if evaluation.branch >= 0:
                plan = evaluation.work.plan
                part = slice(at, at + len(lane_rows))
                report = flat.report(plan.epoch, plan.step, evaluation.branch, part)
                reports.append((evaluation.work.request_id, report))
            at += len(lane_rows)
        return reports

    def _row(self, position: int, lane: Lane, first: int, evaluation: Evaluation) -> Row:
        """With shifted logits row p - 1 decides position p; left of the input that is the slot's boundary row."""
        at = position - self._shift
        source = first + at - lane.start if at >= lane.start else -1 - lane.slot
        plan = evaluation.work.plan
        bitmask = plan.token_bitmask(plan.branches[evaluation.branch], position)
        return Row(source, position, plan.step, plan.sampling_params, bitmask)

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
        """Full logits of a span: fp32 [len(ids), V], row by row as the model gives them (not shifted).

        The span [start, start + len(ids)) is fed behind what the slot has cached; `segments`
        says what its rows see (default: everything up to the span's end). The K/V of `to_stage`
        enters the cache afterwards. With `start` 0 the slot is taken over, empty.
        """
        if start == 0:
            self.cache.reset(slot, -1)
        stop = start + len(ids)
        hidden, _, (payload,) = self._forward(
            [Lane(slot, start, list(ids), segments or ((stop, stop),), to_stage)]
        )
        if payload is not None:
            self.cache.write(slot, to_stage, payload)
        parts = [hidden[at : min(at + MAX_HEAD_ROWS, len(ids))] for at in range(0, len(ids), MAX_HEAD_ROWS)]
        return torch.cat([self._head.whole_logits(part)[: len(part)] for part in parts])

    @property
    def position_bytes(self) -> int:
        """Bytes of K/V per cached position."""
        return self.cache.data[0, :, :, :, 0].numel() * self.cache.data.element_size()

    def checksums(self) -> list[SlotChecksum]:
        """Per slot: owner, committed spans, and a hash of their K/V and boundary row."""
        return [self.cache.checksum(slot) for slot in range(len(self.cache.owner))]
