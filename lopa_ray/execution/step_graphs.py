"""StepGraphs: the forward and the greedy scores of a step as a CUDA graph, one for each bucket of rows.

Packing, commits and staging stay outside. A step runs without a graph, with the same tokens, if it has more rows than
the largest bucket, scores that are not greedy, or inputs that no bucket has (`BucketInputs.takes`).

Shape suffixes: R rows of a bucket, S slots, L layers, K KV heads, E head dim, D hidden size.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.attention import AttentionBackend, PackedAttention
from lopa_ray.execution.graph_capture import CudaCapture
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.lm_head import LMHead
from lopa_ray.execution.model_inputs import TokenInputs
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.execution.rows_to_score import ScoringGroup
from lopa_ray.execution.scoring_kind import GREEDY
from lopa_ray.execution.step_buffer import BucketInputs, StepBuffer, example_step
from lopa_ray.kernels.row_scores import SCORE_COLUMNS
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.mask_predictor import MaskPredictor

MAX_GRAPH_ROWS = 512
"""Rows of the largest bucket. With more of them a step takes longer on the device than its launches on the host."""

MEMORY_SHARE = 0.25
"""Graphs may take this share of the memory that is free after the largest step of the warm-up."""

_log = logging.getLogger("lopa.graphs")


def graph_refusal(model: MaskPredictor, attention: AttentionBackend) -> str | None:
    """Why the steps of a model with that attention cannot be captured, or None if they can."""
    if not isinstance(model.config, NativeConfig):
        return "the package transformers runs the model"
    if model.tp_group.size > 1:
        return "the model is cut into shards, which get new communicators when a worker is lost or joins"
    if not isinstance(attention, PackedAttention):
        return "its attention is computed lane by lane"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """The captured step of a bucket, and its results."""

    inputs: BucketInputs
    graph: torch.cuda.CUDAGraph
    rows: Tensor
    """[R + S, D] in the model's dtype: hidden rows, then the boundary rows of slots; see `BranchRunner.forward`."""
    kv: Tensor
    """[L, 2, R, K, E] in the model's dtype: keys and values of all rows."""
    scores: Tensor
    """fp64 [R x 4]: see `LMHead.score`."""

    def replay(self, packing: Packing) -> Tensor:
        """Compute the step that `inputs` have; returns its scores as `LMHead.score` does, fp64 [N x 4]. They, `rows`
        and `kv` are valid until the next replay of any bucket."""
        self.graph.replay()
        return self.scores[: packing.rows_to_score.size * SCORE_COLUMNS]


class StepGraphs:
    """The graphs of a runner's steps."""

    def __init__(
        self,
        model: MaskPredictor,
        cache: KVCache,
        attention: PackedAttention,
        lm_head: LMHead,
        options: PackingOptions,
    ) -> None:
        """Allocates the buffers that all buckets share."""
        self._model, self._cache, self._attention, self._lm_head = model, cache, attention, lm_head
        self._options = options
        self._buckets = sorted({options.bucket(rows) for rows in range(1, MAX_GRAPH_ROWS + 1)}, reverse=True)
        most, device = self._buckets[0], cache.data.device
        slots, layers, two, heads, _, dim = cache.data.shape
        self._kv_shape = layers, two, heads, dim
        hidden = model.config.hidden_size
        self._buffer = StepBuffer(device, BucketInputs.words(most, options))
        self._rows = cache.data.new_zeros((most + slots) * hidden)
        self._kv = cache.data.new_zeros(layers * two * most * heads * dim)
        self._scores = torch.zeros(most * SCORE_COLUMNS, dtype=torch.float64, device=device)
        self._graphs: dict[int, StepGraph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def graph_of(self, packing: Packing) -> StepGraph | None:
        graph = self._graphs.get(packing.rows_bucket)
        fits = graph is not None and graph.inputs.takes(packing) and self._attention.fits(packing)
        return graph if fits else None

    def capture(self, capture: CudaCapture) -> None:
        """Capture the steps of all buckets, the largest first: the smaller steps share its memory. A step that needs
        more of the free memory than `MEMORY_SHARE` has none. Raises torch's error for a step that no graph can have."""
        began, budget = time.perf_counter(), int(MEMORY_SHARE * capture.free_bytes())
        for at, rows in enumerate(self._buckets):
            if at % 8 == 0:
                _log.info("capturing CUDA graphs: %d of %d", at, len(self._buckets))
            self._capture_bucket(rows, capture, budget)
        count, most = len(self._graphs), max(self._graphs, default=0)
        took = time.perf_counter() - began
        _log.info("captured %d CUDA graphs of steps of up to %d rows in %.1f s", count, most, took)

    def _capture_bucket(self, rows: int, capture: CudaCapture, budget: int) -> None:
        slots = len(self._cache.request_ids)
        layers, two, heads, dim = self._kv_shape
        hidden = self._model.config.hidden_size
        inputs = BucketInputs(self._buffer, rows, self._options)
        kv_shape = layers, two, rows, heads, dim
        kv = self._kv[: math.prod(kv_shape)].view(kv_shape)
        packed = self._rows[: (rows + slots) * hidden].view(rows + slots, hidden)
        scores = self._scores[: rows * SCORE_COLUMNS]
        inputs.fill(example_step(rows, self._options).columns)
        columns = inputs.columns
        group = ScoringGroup(GREEDY, range(rows), 0)

        def step() -> None:
            attention = self._attention.bind_rows(self._cache, rows, columns)
            forwarded = TokenInputs(self._model).forward(columns, attention, kv)
            torch.cat((forwarded, self._cache.last_rows), out=packed)
            scores.copy_(self._lm_head.score([group], columns, packed))

        try:
            needed = capture.warm_up(step)
        except torch.OutOfMemoryError:
            _log.warning("no CUDA graph of %d rows: the device lacks memory for it", rows)
            return
        if needed > budget:
            message = "no CUDA graph of %d rows: it takes %.0f MiB, and graphs may take %.0f MiB"
            _log.warning(message, rows, needed / 2**20, budget / 2**20)
            return
        self._graphs[rows] = StepGraph(inputs, capture.capture(step), packed, kv, scores)
