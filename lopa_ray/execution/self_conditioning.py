"""Self-conditioning: a step's canvas takes in what the step before found likely at each position (DiffusionGemma).

The logits of a step become a signal, one row per position of its canvas, which the step stages with its K/V, and which
is committed, copied and replayed as K/V are. `ConditionedInputs` names its step, so a slot with another step is
noticed.

Shape suffixes: R packed rows, N scored rows, D hidden size, V vocabulary, S slots, A positions of a canvas, Q lanes
that stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.model_inputs import TokenInputs
from lopa_ray.execution.rows_to_score import RowsToScore
from lopa_ray.execution.scoring_kind import COLUMN
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.model.transformer import AttentionFn
from lopa_ray.model.transformers_implementation.canvas_model import CanvasModel
from lopa_ray.protocol.plan_inputs import ConditionedInputs

NO_SIGNAL, ENCODED = -1, -2
"""Signals of a row whose canvas has no self-conditioning, and of a row of the encoder."""

NOTHING = np.zeros(0, np.int64)


def signal_rows(
    lanes: Sequence[Lane], first_rows: Sequence[int], rows: int, canvas_length: int
) -> npt.NDArray[np.int64]:
    """The index of each row's signal among the S x A of all slots, or one of the above: int64 [R]; [0] if
    `canvas_length` is 0. Lane i begins at row `first_rows[i]`."""
    if not canvas_length:
        return NOTHING
    index = np.full(rows, NO_SIGNAL)
    for lane, first in zip(lanes, first_rows, strict=False):
        of_lane = slice(first, first + len(lane.canvas))
        if lane.encodes:
            index[of_lane] = ENCODED
        elif lane.request is not None and isinstance(lane.request.plan.inputs, ConditionedInputs):
            index[of_lane] = lane.slot * canvas_length + np.arange(len(lane.canvas))
    return index


def stage_signals(
    lanes: Sequence[Lane], rows_to_score: RowsToScore, canvas_length: int
) -> npt.NDArray[np.int64]:
    """The scored row for the signal of each position of the canvas of each staging lane, or N for none, as
    after a step of the encoder: int64 [Q x A]; [0] if `canvas_length` is 0."""
    if not canvas_length:
        return NOTHING
    parts = [NOTHING]
    for at, lane in enumerate(lanes):
        if lane.to_stage:
            of_lane = np.full(canvas_length, rows_to_score.size)
            if not lane.encodes:
                scored = rows_to_score.rows_of_lane(at)
                of_lane[: len(scored)] = scored
            parts.append(of_lane)
    return np.concatenate(parts)


class SelfConditioning(TokenInputs):
    """Tokens with the self-conditioning of all canvases that a worker denoises."""

    _model: CanvasModel

    def __init__(self, model: CanvasModel, cache: KVCache) -> None:
        super().__init__(model)
        self._cache = cache
        self._new: list[Tensor] = []
        """Signals of the step's scored rows, part by part in the model's dtype."""

    def forward(self, columns: StepColumns[Tensor], attention: AttentionFn, kv: Tensor | None) -> Tensor:
        self._new = []  # an attempt that lacked memory may have left some
        index, config = columns.signal_rows, self._model.config
        by_slot = self._cache.boundary.view(-1, 1 + config.canvas_length, config.hidden_size)
        slot, position = index // config.canvas_length, index % config.canvas_length
        signals = torch.where(index[:, None] >= 0, by_slot[slot.clamp_min(0), 1 + position], 0.0)
        hidden: Tensor = self._model(
            columns.ids, columns.positions, attention, kv, is_encoded=index == ENCODED, signals=signals
        )
        return hidden

    def observe(self, logits: Tensor, numbers: Tensor) -> None:
        temperature = numbers[:, COLUMN.draw_temperature, None].float()
        self._new.append(self._model.signals(logits.float() / temperature))

    def boundaries(self, columns: StepColumns[Tensor], rows: Tensor) -> Tensor:
        # After the hidden rows [Q, D]: the signals [Q, A * D].
        signals = torch.cat((*self._new, rows.new_zeros(1, rows.shape[1])))
        self._new = []
        staged = signals.index_select(0, columns.stage_signals).view(len(columns.stage_boundaries), -1)
        return torch.cat((super().boundaries(columns, rows), staged), dim=1)
