"""Penalties and biases: tables of the tokens whose logits change, built on the host for all requests of a step.

The logits of tokens that are not in a table do not change, not even in rounding.

Shape suffixes: C canvases, L lanes, E tokens of a canvas that change, F tokens of a lane's fill set; N rows to score,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.execution.lane import Lane
from lopa_ray.protocol.logit_changes import LogitChanges

CHANGE_COLUMNS = 4
"""Columns of a table: the token's id (-1: none), the bias that is added to its logit, the factor by which the sum is
then divided (if it is positive) or multiplied, and the number that is subtracted last."""

ID_BITS = 32
"""Keys of tokens have the token id in the lowest `ID_BITS` bits, and the index of a canvas or lane above them."""

NO_TOKENS = np.zeros(0, np.int64)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


NO_CHANGES: dict[str, npt.NDArray[Any]] = {
    "change_rows": np.zeros((0, 2), np.int64),
    "canvas_changes": np.zeros((0, 0, CHANGE_COLUMNS)),
    "fill_changes": np.zeros((0, 0, CHANGE_COLUMNS)),
}
"""The columns of a step in which no logits change."""


def logit_changes_of_lane(lane: Lane) -> LogitChanges | None:
    return lane.request.plan.logit_changes if lane.request is not None and lane.scored else None


class LogitChangeTables:
    """The logit changes of a step: by canvas, and by the fill sets of lanes, which override the canvas."""

    def __init__(self, lanes: Sequence[Lane], bucket: Callable[[int], int]) -> None:
        self._bucket = bucket
        self._plans: list[LogitChanges] = []
        self.canvas_of_lane = np.full(len(lanes), -1)
        """int64 [L]: the index of each lane's canvas; -1 if the lane's logits do not change."""
        index_of: dict[int, int] = {}
        for at, lane in enumerate(lanes):
            if (changes := logit_changes_of_lane(lane)) is not None:
                self.canvas_of_lane[at] = index_of.setdefault(id(changes), len(self._plans))
                if len(index_of) > len(self._plans):
                    self._plans.append(changes)
        penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in self._plans]
        self._penalties = np.array(penalties, np.float64)
        self.of_canvases = self._canvas_changes()  # fp64 [C, E, 4]
        self.of_fills = self._fill_changes(lanes)  # fp64 [L, F, 4]

    def rows(self, lane_of_row: Ints) -> Ints:
        """The canvas (0 if its logits do not change) and the lane of each row, int64 [rows, 2], of `lane_of_row` int64
        [rows]."""
        return np.stack((self.canvas_of_lane[lane_of_row].clip(0), lane_of_row), axis=1)

    def _canvas_changes(self) -> Floats:
        biased = _keys([plan.biased_ids for plan in self._plans])
        prompt = _keys([plan.prompt_ids for plan in self._plans])
        answer = _keys([plan.answer_ids for plan in self._plans])
        self._keys = np.unique(np.concatenate((biased, prompt, answer)))
        self._bias = np.zeros(len(self._keys))
        self._bias[np.searchsorted(self._keys, biased)] = np.concatenate(
            [plan.bias_values for plan in self._plans]
        )
        self._counts = np.bincount(np.searchsorted(self._keys, answer), minlength=len(self._keys))
        is_seen = self._counts > 0
        is_seen[np.searchsorted(self._keys, prompt)] = True
        canvases = self._keys >> ID_BITS
        changes = self._changes(canvases, self._keys, self._bias, self._counts, is_seen)
        return self._table(changes, canvases, len(self._plans))

    def _fill_changes(self, lanes: Sequence[Lane]) -> Floats:
        """Changes of the tokens that lanes add to their canvas. Occurrences in the canvas are counted too."""
        lane_fills = []
        for at in np.flatnonzero(self.canvas_of_lane >= 0).tolist():
            plan = self._plans[self.canvas_of_lane[at]]
            if plan.has_penalties:
                counted = (token for _, token in lanes[at].fills if token not in plan.uncounted_ids)
                lane_fills += [at << ID_BITS | token for token in counted]
        fills, counts = np.unique(np.array(lane_fills, np.int64), return_counts=True)
        lane_of_fill = fills >> ID_BITS
        canvases = self.canvas_of_lane[lane_of_fill]
        keys = canvases << ID_BITS | _ids(fills)
        at = np.searchsorted(self._keys, keys)
        is_listed = np.append(self._keys, -1)[at] == keys
        bias = np.where(is_listed, np.append(self._bias, 0.0)[at], 0.0)
        counts += np.where(is_listed, np.append(self._counts, 0)[at], 0)
        changes = self._changes(canvases, fills, bias, counts, counts > 0)
        return self._table(changes, lane_of_fill, len(lanes))

    def _changes(
        self, canvases: Ints, keys: Ints, bias: Floats, counts: Ints, is_seen: npt.NDArray[np.bool_]
    ) -> Floats:
        repetition, frequency, presence = self._penalties[canvases].T
        factors = np.where(is_seen, repetition, 1.0)
        subtrahends = frequency * counts + presence * (counts > 0)
        return np.stack((_ids(keys), bias, factors, subtrahends), axis=1)

    def _table(self, changes: Floats, groups: Ints, num_groups: int) -> Floats:
        """Changes fp64 [tokens, 4], sorted by group → a padded table fp64 [groups, tokens, 4]."""
        counts = np.bincount(groups, minlength=num_groups)
        most = int(counts.max())
        table = np.zeros((num_groups, self._bucket(most) if most else 0, CHANGE_COLUMNS))
        table[..., 0] = -1
        first = np.cumsum(counts) - counts
        table[groups, np.arange(len(groups)) - first[groups]] = changes
        return table


def _keys(ids: Sequence[npt.NDArray[np.int32]]) -> Ints:
    groups = np.repeat(np.arange(len(ids)), [len(ids_of_group) for ids_of_group in ids])
    keys: Ints = groups << ID_BITS | np.concatenate([NO_TOKENS, *ids])
    return keys


def _ids(keys: Ints) -> Ints:
    ids: Ints = keys & ((1 << ID_BITS) - 1)
    return ids


def change_logits(logits: Tensor, rows: Tensor, tables: Sequence[Tensor]) -> Tensor:
    """Apply tables of changes, fp64 [groups, tokens, 4], to logits [N, V] of a floating dtype. For a token in several
    tables the last one counts. `rows` int64 [N, tables]: the group of each row in each table."""
    padded = F.pad(logits, (0, 1))  # the extra column takes the changes of padding
    changed = []
    for table, groups in zip(tables, rows.unbind(1), strict=True):
        if not table.shape[1]:
            continue
        ids, *numbers = table.index_select(0, groups).unbind(-1)
        at = torch.where(ids >= 0, ids.to(torch.int64), logits.shape[1])
        bias, factor, subtrahend = (number.to(logits.dtype) for number in numbers)
        biased = padded.gather(1, at) + bias
        penalized = torch.where(biased > 0, biased / factor, biased * factor)
        changed.append((at, penalized - subtrahend))
    for at, values in changed:
        padded.scatter_(1, at, values)
    return padded[:, :-1]
