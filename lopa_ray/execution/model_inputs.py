"""ModelInputs: how a model is called with a step's columns, and what a step stages besides K/V. The runner applies it.

Shape suffixes: R packed rows, S slots, D hidden size, N scored rows, V vocabulary, Q staging lanes.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.self_conditioning import SelfConditioning
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.transformer import AttentionFn
from lopa_ray.model.transformers_implementation.canvas_model import CanvasModel


class ModelInputs(Protocol):
    """The inputs of a model, from a step's columns and from what earlier steps have staged."""

    def forward(self, columns: StepColumns[Tensor], attention: AttentionFn, kv: Tensor | None) -> Tensor:
        """The hidden rows [R, D] of a step, in the model's dtype; `kv` as in `MaskPredictor.__call__`."""
        ...

    def observe(self, logits: Tensor, numbers: Tensor) -> None:
        """Take in logits [N, V] of any float type, with the numbers fp64 [N, columns] of their rows."""
        ...

    def boundaries(self, columns: StepColumns[Tensor], rows: Tensor) -> Tensor:
        """The boundary row of each staging lane (see `KVCache`), [Q, ...] in the model's dtype, of `rows` [R + S, D],
        after all logits of the step were observed."""
        ...


class TokenInputs:
    """Embeddings of tokens, weighted for soft inputs, and rows for a draft adapter."""

    def __init__(self, model: MaskPredictor) -> None:
        self._model = model

    def forward(self, columns: StepColumns[Tensor], attention: AttentionFn, kv: Tensor | None) -> Tensor:
        weights = columns.input_weights if len(columns.input_weights) else None
        draft_rows = columns.draft_rows if len(columns.draft_rows) else None
        return self._model(columns.ids, columns.positions, attention, kv, weights, draft_rows)

    def observe(self, logits: Tensor, numbers: Tensor) -> None:
        pass

    def boundaries(self, columns: StepColumns[Tensor], rows: Tensor) -> Tensor:
        return rows.index_select(0, columns.stage_boundaries)


def model_inputs(model: MaskPredictor, cache: KVCache) -> ModelInputs:
    """The inputs of a model whose cache is `cache`."""
    return SelfConditioning(model, cache) if isinstance(model, CanvasModel) else TokenInputs(model)
