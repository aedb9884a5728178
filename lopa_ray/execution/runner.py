"""BranchRunner: one model replica and its KV cache. It carries out one worker's part of a step.

    slots  →  pack (numpy)  →  one copy to the device  →  broadcast of K/V, one wait for all  →  K/V are committed
    →  one packed forward of all branches  →  stage  →  score  →  one copy to the host

It does not depend on the decoder. The plans contain all inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from lopa_ray.execution.attention import AttentionBackend, LaneAttention, PackedAttention
from lopa_ray.execution.canvas_attention import default_attention
from lopa_ray.execution.graph_capture import CudaCapture
from lopa_ray.execution.kv_cache import KVCache, SlotState
from lopa_ray.execution.lane import Lane, lanes_of
from lopa_ray.execution.launched_step import LaunchedStep, StepTimes
from lopa_ray.execution.lm_head import LMHead
from lopa_ray.execution.model_inputs import TokenInputs
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.execution.rule_memory import attend_in_shadow_slots
from lopa_ray.execution.self_conditioning import SelfConditioning
from lopa_ray.execution.slots import PayloadTransfer, Slots
from lopa_ray.execution.staging import StagedLane, StagedStep
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.execution.step_graphs import StepGraph, StepGraphs
from lopa_ray.kernels.padding import several_rows
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import is_packed
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.transformers_implementation.canvas_model import CanvasModel
from lopa_ray.protocol.plan import ScheduledRequest, Segment, Spans, StepPlan
from lopa_ray.protocol.slot_checksum import SlotChecksum
from lopa_ray.protocol.step_report import StepReport
from lopa_ray.protocol.vocabulary import Vocabulary

logger = logging.getLogger("lopa.runner")


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
        """The cache has `max_num_seqs` slots of `max_model_len` positions. A model that denoises canvases computes the
        last one of an answer whole, which needs positions for it. Raises CapacityError if the cache does not fit in
        memory."""
        config = model.config
        self.attention = attention or default_attention(config)
        self.device, dtype = model.embed.weight.device, model.embed.weight.dtype
        self.cache = KVCache(model.shard_config, max_num_seqs, max_model_len, dtype, self.device)
        ids = config.mask_token_id, config.eos_token_id, config.stop_token_ids
        indels = config.delete_token_id, config.split_token_id
        self.vocabulary = Vocabulary(
            config.vocab_size,
            *ids,
            config.shifted,
            config.canvas_length,
            *indels,
            has_draft_head=model.draft_head is not None,
            routing_block=config.routing_block,
        )
        self.packing_options = PackingOptions(
            capacity=max_model_len,
            heads_per_kv_head=model.shard_config.num_heads // model.shard_config.num_kv_heads,
            vocabulary=self.vocabulary,
            bucket=self.attention.bucket,
            has_draft_adapter=isinstance(config, NativeConfig) and bool(config.draft_widths),
        )
        self._probe = torch.zeros(1, device=self.device)  # there before memory can be short
        self.slots = Slots(self.cache)
        self._capture: CudaCapture | None = None
        self.use_model(model)

    def use_model(self, model: MaskPredictor) -> None:
        """Compute with this model from the next step on, of the same configuration. Slots and stored prefixes are
        dropped, and captured steps are captured again."""
        self.model = model
        takes_few = isinstance(self.attention, LaneAttention) and is_packed(model, torch.float32)
        bucket = several_rows if takes_few else self.attention.bucket
        self.packing_options = replace(self.packing_options, bucket=bucket)
        self._lm_head = LMHead(model)
        self._inputs = TokenInputs(model)
        if isinstance(model, CanvasModel):
            self._inputs = SelfConditioning(model, self.cache)
        self._graphs: StepGraphs | None = None
        self.slots.reconcile({}, ())
        if self._capture is not None and not self.cache.is_released:
            self.capture_graphs(self._capture)

    def sleep(self) -> None:
        """Free the memory of K/V and captured steps, and move weights to the host's memory. Slots and prefixes are
        dropped."""
        self.cache.release()
        self.use_model(self.model)
        if self.device.type != "cpu":
            cast(nn.Module, self.model).to("cpu")

    def wake_up(self) -> None:
        """Be as before `sleep`. Raises RuntimeError without the memory."""
        if self.device.type != "cpu":
            cast(nn.Module, self.model).to(self.device)
        self.cache.allocate()
        self.use_model(self.model)

    @torch.inference_mode()
    def capture_graphs(self, capture: CudaCapture) -> None:
        """Capture steps as CUDA graphs, which later steps replay, unless `graph_refusal` has a reason against it. Slots
        keep what they have. Raises what torch raises if a capture fails."""
        assert isinstance(self.attention, PackedAttention)
        self._capture = capture
        parts = self.model, self.cache, self.attention, self._lm_head
        self._graphs = StepGraphs(*parts, self.packing_options)
        self._graphs.capture(capture)

    def execute(self, plan: StepPlan, transfer: PayloadTransfer | None = None) -> StepReport:
        """See `launch`; the report of what it returns."""
        return self.launch(plan, transfer).report()

    @torch.inference_mode()
    def launch(self, plan: StepPlan, transfer: PayloadTransfer | None = None) -> LaunchedStep:
        """Carry out all commits, and begin to evaluate this worker's branches. An accelerator computes after this
        returns, and further steps without a request of this one may be launched before its report. Commits with K/V
        from other workers are carried out together, after all have arrived. A commit is applied once per request and
        step, so a step can be repeated in a newer epoch. Raises ProtocolError if cache or staged K/V do not match the
        plans, CapacityError for positions beyond a slot, and TransferError."""
        times = StepTimes(self.device)
        self.slots.assign(plan)
        payloads = self.slots.payloads(plan, transfer)
        commits = self.slots.commits(plan, payloads)
        times.mark()
        lanes = [lane for scheduled in plan.requests for lane in lanes_of(scheduled)]
        packing = Packing(lanes, commits, self.packing_options)
        graph = None if self._graphs is None else self._graphs.graph_of(packing)
        columns = packing.to_device(self.device) if graph is None else graph.inputs.fill(packing.columns)
        times.mark()
        if transfer is not None and payloads:
            transfer.broadcast(payloads)
            self.model.tp_group.barrier(self.device)
        self.cache.write_staged(commits, columns.commit_rows, columns.commit_boundaries)
        self.slots.retain(plan)
        times.mark()
        if not lanes:
            times.mark()
            return LaunchedStep(plan, times, self.model.tp_group)
        try:
            scores = self._evaluate(packing, columns, graph)
        except torch.OutOfMemoryError:
            if self.model.tp_group.size > 1:  # the other shards are in the middle of the same forward
                raise
            scores = None
        if scores is None:  # the error is gone by now, and with it the tensors of the first attempt
            logger.warning("a step lacks memory; torch's cache is emptied, and the step is tried once more")
            if self.device.type != "cpu":  # what torch keeps can be in larger pieces again
                torch.accelerator.empty_cache()
            scores = self._evaluate(packing, columns, graph)
        # A copy that is enqueued later would wait for the steps that are launched meanwhile.
        scores = scores.to("cpu", non_blocking=times.has_events)
        times.mark()
        return LaunchedStep(plan, times, self.model.tp_group, packing.rows_to_score, scores)

    def _evaluate(self, packing: Packing, columns: StepColumns[Tensor], graph: StepGraph | None) -> Tensor:
        """Forward, score and stage; returns what `score` returns. It may be repeated after a lack of memory."""
        kv: Tensor | None
        if graph is not None:
            scores, rows, kv = graph.replay(packing), graph.rows, graph.kv
        else:
            rows, kv = self.forward(packing, columns)
            scores = self.score(packing, columns, rows)
        if kv is not None and packing.has_staged_rows:
            self.slots.staging.add_step(packing.lanes, packing.stage_ranges, self.staged(columns, rows, kv))
        return scores

    def staged(self, columns: StepColumns[Tensor], rows: Tensor, kv: Tensor) -> StagedStep:
        """The staged rows of a forward, gathered from `rows` [R + S, D] and `kv` [L, 2, R, K, E] in the model's dtype.
        One operation gathers all layers."""
        return StagedStep(kv.index_select(2, columns.stage_rows), self._inputs.boundaries(columns, rows))

    def reconcile(
        self, request_by_slot: Mapping[int, int], staged: Sequence[ScheduledRequest]
    ) -> tuple[bool, ...]:
        """See `Slots.reconcile`."""
        return self.slots.reconcile(request_by_slot, staged)

    def export_slots(self, request_by_slot: Mapping[int, int]) -> list[SlotState]:
        """See `Slots.export`."""
        return self.slots.export(request_by_slot)

    def import_slots(self, states: Sequence[SlotState]) -> None:
        for state in states:
            self.cache.import_slot(state)

    def forward(self, packing: Packing, columns: StepColumns[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Run the packed forward. Both results have the model's dtype. Returns the hidden rows of all lanes followed by
        the boundary rows of slots, [R + S, D], and the keys and values of all rows, [L, 2, R, K, E], or None if no lane
        stages K/V."""
        kv = None
        if packing.has_staged_rows:
            _, layers, two, heads, _, dim = self.cache.data.shape
            kv = self.cache.data.new_empty(layers, two, packing.rows_bucket, heads, dim)
        attention = self.attention.bind(self.cache, packing, columns)
        attention = attend_in_shadow_slots(attention, packing.lanes, packing.first_rows)
        hidden = self._inputs.forward(columns, attention, kv)
        return torch.cat((hidden, self.cache.last_rows)), kv

    def score(self, packing: Packing, columns: StepColumns[Tensor], rows: Tensor) -> Tensor:
        """See `LMHead.score`."""
        groups = packing.rows_to_score.groups
        if not groups:
            return torch.empty(0, dtype=torch.float64, device=self.device)
        drafts = packing.rows_to_score.drafts
        return self._lm_head.score(groups, columns, rows, self._inputs.observe, drafts)

    @torch.inference_mode()
    def logits(
        self,
        ids: Sequence[int],
        *,
        start: int = 0,
        segments: tuple[Segment, ...] | None = None,
        to_stage: Spans = (),
        slot: int = 0,
        causal: bool = False,
        draft_adapter: bool = False,
    ) -> Tensor:
        """Full logits of the span [start, start + len(ids)): fp32 [len(ids), V], one row per input, not shifted. The
        rows see the cached positions of the slot before the span, and the positions that `segments` allow (default: all
        positions up to the end of the span), or if `causal` is set positions up to their own. With `draft_adapter` they
        go through the model's draft adapter. The K/V of `to_stage` are committed afterwards. If `start` is 0, the slot
        is emptied first."""
        if start == 0:
            self.cache.reset(slot, -1)
        stop = start + len(ids)
        lane = Lane(slot, start, np.array(ids, np.int64), segments or ((stop, stop),), to_stage=to_stage)
        lane = replace(lane, causal_stop=stop if causal else 0, draft_adapter=draft_adapter)
        packing = Packing([lane], [], self.packing_options)
        columns = packing.to_device(self.device)
        rows, kv = self.forward(packing, columns)
        hidden = rows[: len(ids)]
        if kv is not None:
            staged = StagedLane(self.staged(columns, rows, kv), packing.stage_ranges[0], 0, start)
            self.cache.write_payload(slot, to_stage, self.cache.gather_payload([(slot, to_stage, staged)]))
        logits = torch.cat([self._lm_head.full_logits(part) for part in hidden.split(self._lm_head.max_rows)])
        self.model.tp_group.wait()
        return logits

    @property
    def position_bytes(self) -> int:
        return self.cache.data[0, :, :, :, 0].numel() * self.cache.data.element_size()

    def check_device(self) -> None:
        """Raises what torch raises if the device computes no more: after an illegal memory access every later use of a
        CUDA context fails."""
        self._probe.add_(1).item()

    def checksums(self) -> list[SlotChecksum]:
        return [self.cache.checksum(slot) for slot in range(len(self.cache.request_ids))]
