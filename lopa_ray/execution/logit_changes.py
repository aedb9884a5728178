"""Penalties and biases: tables of the tokens whose logits change, made on the host for all requests of a step at once.

Tokens that a table does not list keep their logits to the bit.

Shape suffixes: C canvases, L lanes, E tokens of a canvas that change, F tokens of a lane's fill set; N rows to score,
V vocabulary (of a shard: its part of it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.execution.lane import Lane
from lopa_ray.protocol.logit_changes import LogitChanges

ID, BIAS, FACTOR, SUBTRAHEND = range(4)
"""Columns of a token that changes: its id (-1: none), what is added to its logit, what that is divided or multiplied
by, and what is subtracted then."""

CHANGE_COLUMNS = 4

ID_BITS = 32

NO_TOKENS = np.zeros(0, np.int64)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


NO_CHANGES = np.zeros((0, 0, CHANGE_COLUMNS))
NO_CHANGING_ROWS = np.zeros((0, 2), np.int64)
"""The tables and rows of a step in which no logits change."""


def logit_changes_of_lane(lane: Lane) -> LogitChanges | None:
    """Those of the lane's plan; None: its logits do not change."""
    return None if lane.request is None or lane.index < 0 else lane.request.plan.logit_changes


class LogitChangeTables:
    """What changes by the canvases of a step, and what by the fill sets of its lanes, which overrides that."""

    def __init__(self, lanes: Sequence[Lane], bucket: Callable[[int], int]) -> None:
        """`bucket`: how many tokens a table has a place for that has so many."""
        self._bucket = bucket
        self._plans: list[LogitChanges] = []
        self.canvas_of_lane = np.full(len(lanes), -1)
        """int64 [L]; -1: the lane's logits do not change."""
        self._index_plans(lanes)
        penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in self._plans]
        self._penalties = np.array(penalties, np.float64)
        self.of_canvases = self._canvas_changes()
        """fp64 [C, E, 4]."""
        self.of_fills = self._fill_changes(lanes)
        """fp64 [L, F, 4]."""

    def rows(self, lane_of_row: Ints) -> Ints:
        """Of each row its canvas and its lane, int64 [rows, 2]; canvas 0 where logits do not change."""
        return np.stack((self.canvas_of_lane[lane_of_row].clip(0), lane_of_row), axis=1)

    def _index_plans(self, lanes: Sequence[Lane]) -> None:
        index_of: dict[int, int] = {}
        for at, lane in enumerate(lanes):
            changes = logit_changes_of_lane(lane)
            if changes is None:
                continue
            index = self.canvas_of_lane[at] = index_of.setdefault(id(changes), len(self._plans))
            if index == len(self._plans):
                self._plans.append(changes)

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
        """Of the tokens that lanes add to their canvas, with those that are there already."""
        found = []
        for at in np.flatnonzero(self.canvas_of_lane >= 0).tolist():
            plan = self._plans[self.canvas_of_lane[at]]
            if plan.has_penalties:
                counted = (token for _, token in lanes[at].fills if token not in plan.uncounted_ids)
                found += [at << ID_BITS | token for token in counted]
        fills, counts = np.unique(np.array(found, np.int64), return_counts=True)
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
        """Of tokens of canvases, fp64 [tokens, 4]."""
        repetition, frequency, presence = self._penalties[canvases].T
        factors = np.where(is_seen, repetition, 1.0)
        subtrahends = frequency * counts + presence * (counts > 0)
        return np.stack((_ids(keys), bias, factors, subtrahends), axis=1)

    def _table(self, changes: Floats, groups: Ints, num_groups: int) -> Floats:
        """Changes, in order of their group, fp64 [tokens, 4] → a row for each group."""
        counts = np.bincount(groups, minlength=num_groups)
        most = int(counts.max())
        table = np.zeros((num_groups, self._bucket(most) if most else 0, CHANGE_COLUMNS))
        table[..., ID] = -1
        first = np.cumsum(counts) - counts
        table[groups, np.arange(len(groups)) - first[groups]] = changes
        return table


def _keys(ids: Sequence[npt.NDArray[np.int32]]) -> Ints:
    """Ids of each group, as numbers that tell groups apart and are in their order."""
    groups = np.repeat(np.arange(len(ids)), [len(each) for each in ids])
    keys: Ints = groups << ID_BITS | np.concatenate([NO_TOKENS, *ids])
    return keys


def _ids(keys: Ints) -> Ints:
    ids: Ints = keys & ((1 << ID_BITS) - 1)
    return ids


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """A table of a step, on the device."""

    columns: Tensor
    """Where tokens are in a row of logits, int64 [C, E] or [L, F]; the last column + 1 for those that are not here."""
    numbers: Tensor
    """Bias, factor and subtrahend, fp64 [C, E, 3] or [L, F, 3]."""

    @classmethod
    def of(cls, table: Tensor, local_ids: range) -> DeviceChanges:
        """Of a table [C, E, 4] or [L, F, 4] in fp64, for logits of the ids that are here."""
        ids = table[:, :, ID].to(torch.int64)
        is_here = (ids >= local_ids.start) & (ids < local_ids.stop)
        return cls(torch.where(is_here, ids - local_ids.start, len(local_ids)), table[:, :, BIAS:])


def change_logits(logits: Tensor, rows: Tensor, tables: Sequence[DeviceChanges]) -> Tensor:
    """Logits [N, V] with the changes of the first table, and those of the next ones instead where they have any.

    `rows` int64 [N, tables]: the group of each row in each table.
    """
    padded = F.pad(logits, (0, 1))  # the last column takes what is for tokens that are not here
    changed = []
    for table, groups in zip(tables, rows.unbind(1), strict=True):
        if not table.columns.shape[1]:
            continue
        at = table.columns.index_select(0, groups)
        bias, factor, subtrahend = table.numbers.index_select(0, groups).to(logits.dtype).unbind(-1)
        biased = padded.gather(1, at) + bias
        penalized = torch.where(biased > 0, biased / factor, biased * factor)
        changed.append((at, penalized - subtrahend))
    for at, values in changed:
        padded.scatter_(1, at, values)
    return padded[:, :-1]
