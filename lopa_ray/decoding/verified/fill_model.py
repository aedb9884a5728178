"""FillModel: what a threshold rule will probably fill in a state that has not been scored, by a report from before it.

A small network, fitted beforehand (`lopa experiment fit-drafts`) and the same for all requests, so that drafts depend
on nothing but the request. It decides the number of steps, and with exact acceptance never a token.

Shape suffixes: N masked positions, F features, H hidden units, B blocks.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from lopa_ray.decoding.unmasking_rules import RuleBlock
from lopa_ray.decoding.verified.evaluated_state import EvaluatedState
from lopa_ray.protocol.plan import Fill

FEATURES = (
    "logit of the probability, 0 at the threshold",
    "score",
    "1 over the distance to the nearest token that the state has beyond the report's",
    "log of 1 + the number of these tokens",
    "1 over 1 + the rank in the block",
    "first in the block",
    "score less the block's best",
    "log of 1 + the number that the block fills at least",
    "the block's highest logit",
    "1 over 1 + the number of masks of the block before it",
    "1 over the distance to the nearest token before it",
    "1 over the distance to the nearest token after it",
)

OUTPUTS = ("passes the threshold", "is the fallback", "keeps its token")
"""Logits of each position; of the second the softmax over a block counts."""

LEAST_ODDS = 0.01  # a position that passes with less is not in any fill set, other than as a fallback
MOST_ODDS = 1e4  # with higher odds positions pass alike
MOST_FALLBACKS = 4  # positions that are looked at as the fallback of a block
CLIPPED = 1e-4  # probabilities are kept this far from 0 and 1
CLIPPED_THRESHOLD = 1e-6  # and thresholds this far: with one above 1 none passes
MAX_LOGIT = 20.0  # bound on the outputs of the network

Floats = npt.NDArray[np.float32]

FillSet = tuple[float, tuple[Fill, ...]]  # probability, and positions with tokens
IndexSet = tuple[float, tuple[int, ...]]  # probability, and indices of positions


class ReportFeatures(NamedTuple):
    """The part of a state's features that comes from its report."""

    row_of: dict[int, int]  # position → row of the report
    positions: npt.NDArray[np.int32]
    logits_and_scores: Floats  # [2, rows]
    tokens: list[int]


class FillModel:
    """A network of one hidden layer for each position, and one output for each block: whether anything passes."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        """`parameters` has the arrays of `lopa_lab.experiments.run.fit_fill_model`, as lists."""
        arrays = {name: np.array(values, np.float32) for name, values in parameters.items()}
        self._hidden, self._hidden_bias = arrays["hidden"], arrays["hidden_bias"]  # [F, H], [H]
        self._output = np.ascontiguousarray(arrays["output"].T)  # [3, H]
        self._output_bias = arrays["output_bias"][:, None]  # [3, 1]
        self._mean, self._max = arrays["block_mean"], arrays["block_max"]  # [H] each
        self._count, self._block_bias = (float(value) for value in arrays["block"])

    @classmethod
    @lru_cache(3)
    def load(cls, ranking: str) -> Self:
        text = files(__package__).joinpath("fill_models.json").read_text()
        return cls(json.loads(text)[ranking])

    def fill_sets(
        self,
        blocks: Sequence[RuleBlock],
        state: EvaluatedState,
        beyond: Iterable[int],
        most: int,
    ) -> list[FillSet]:
        """The `most` most probable fill sets of a state with the masks `blocks`, the most probable first; none if the
        report of `state` has not scored all masks. `beyond`: positions of tokens that it has and `state` has not."""
        positions = [position for block in blocks for position in block.positions]
        if not positions:
            return []
        report = report_features(state, blocks[0].threshold)
        try:
            known = [report.row_of[position] for position in positions]
        except KeyError:
            return []
        rows = np.array(known, np.intp)
        units = features(blocks, report, rows, beyond).dot(self._hidden)
        units += self._hidden_bias
        units /= 1 + np.exp(-units)
        outputs = self._output.dot(units.T)  # [3, N], so that columns are contiguous
        outputs += self._output_bias
        odds, weights, keeps = np.exp(np.minimum(outputs, MAX_LOGIT, out=outputs))
        keeps /= 1 + keeps
        sets: list[IndexSet] = []
        first = 0
        for block in blocks:
            span = slice(first, first := first + len(block.positions))
            any_passes = self._any_passes(units[span])
            columns = odds[span], weights[span], keeps[span]
            of_block = _block_sets(span.start, *columns, any_passes, block.least, most)
            sets = _joined(sets, of_block, most) if first > len(block.positions) else of_block
        return [
            (probability, tuple((positions[at], report.tokens[known[at]]) for at in chosen))
            for probability, chosen in sets
        ]

    def _any_passes(self, units: Floats) -> float:
        """The probability that any position of a block passes, from its hidden units [positions, H] float32."""
        mean = float(self._mean.dot(np.add.reduce(units))) / len(units)
        largest = float(self._max.dot(np.maximum.reduce(units)))
        logit = mean + largest + self._count * math.log1p(len(units)) + self._block_bias
        return 1 / (1 + math.exp(-max(-MAX_LOGIT, min(MAX_LOGIT, logit))))


def report_features(state: EvaluatedState, threshold: float) -> ReportFeatures:
    """The features that a report has for every state; computed once."""
    if state.cached_features is None:
        report = state.report
        probabilities = np.minimum(np.maximum(report.probabilities, CLIPPED), 1 - CLIPPED)
        clipped = min(max(threshold, CLIPPED_THRESHOLD), 1 - CLIPPED_THRESHOLD)
        logits = np.log(probabilities / (1 - probabilities)) - math.log(clipped / (1 - clipped))
        state.cached_features = ReportFeatures(
            {position: row for row, position in enumerate(report.positions.tolist())},
            report.positions,
            np.array((logits, report.scores), np.float32),
            report.tokens.tolist(),
        )
    return cast(ReportFeatures, state.cached_features)


def features(
    blocks: Sequence[RuleBlock], report: ReportFeatures, rows: npt.NDArray[np.int64], beyond: Iterable[int]
) -> Floats:
    """The features of all masked positions of a state, float32 [N, F]; see `FEATURES`. `rows`: theirs in the report."""
    table = np.zeros((len(FEATURES), len(rows)), np.float32)  # rows are faster to write than columns
    table[:2] = report.logits_and_scores.take(rows, 1)
    tokens_beyond = np.fromiter(beyond, np.int64)
    if len(tokens_beyond):
        distances = np.abs(report.positions.take(rows) - tokens_beyond[:, None])
        np.divide(1, np.minimum.reduce(distances), out=table[2])
        table[3] = math.log1p(len(tokens_beyond))
    positions = report.positions.take(rows)
    (ends,) = (np.diff(positions, prepend=-2, append=positions[-1] + 2) != 1).nonzero()  # of runs of masks
    sizes = np.diff(ends)
    within = np.arange(len(rows)) - ends[:-1].repeat(sizes)
    np.divide(1, 1 + within, out=table[10])
    np.divide(1, sizes.repeat(sizes) - within, out=table[11])
    first = 0
    for block in blocks:
        of_block = table[:, first : first + len(block.positions)]
        logits, scores, _, _, ranks, is_first, behind_best, least, highest, before, _, _ = of_block
        order = (-scores).argsort(kind="stable")
        best = order[0]
        ranks[order] = _reciprocals(len(order))
        is_first[best] = 1
        np.subtract(scores, scores[best], out=behind_best)
        least[:] = math.log1p(block.least)
        before[:] = _reciprocals(len(order))
        highest[:] = np.maximum.reduce(logits)
        first += len(order)
    return table.T


@lru_cache(64)
def _reciprocals(count: int) -> Floats:
    """1, 1/2, ... 1/count."""
    return np.reciprocal(np.arange(1, count + 1, dtype=np.float32))


def _block_sets(
    first: int, odds: Floats, weights: Floats, keeps: Floats, any_passes: float, least: int, most: int
) -> list[IndexSet]:
    """The most probable fill sets of a block whose positions have indices from `first` on, the most probable first. The
    columns, [positions] float32 each, are the odds that a position passes, its weight as a fallback, and the
    probability that it keeps its token. If any position passes, positions pass independently."""
    odds = np.minimum(odds, MOST_ODDS)
    (likely,) = (odds > LEAST_ODDS).nonzero()
    log_none = -float(np.add.reduce(np.log1p(odds)))
    costs = np.log(odds[likely] * keeps[likely])
    likely += first
    is_chosen = costs > 0
    chosen = likely[is_chosen].tolist()
    best = log_none + float(np.add.reduce(costs[is_chosen]))
    costs = np.abs(costs)
    order = costs.argsort(kind="stable")[:most]  # the cheapest sets of flips have no others
    factor = any_passes * math.exp(best) / max(1 - math.exp(log_none), CLIPPED)
    sets: dict[tuple[int, ...], float] = {}
    for cost, flipped in _cheapest(costs[order].tolist(), likely[order].tolist(), most):
        members = tuple(sorted({*chosen}.symmetric_difference(flipped) if chosen else flipped))
        if members:
            sets[members] = factor * math.exp(-cost)
    for probability, members in _best_ranked(weights, keeps, min(least, len(weights))):
        fallback = tuple(first + at for at in members)
        sets[fallback] = sets.get(fallback, 0.0) + (1 - any_passes) * probability
    ordered = sorted(((probability, members) for members, probability in sets.items()), reverse=True)
    return ordered[:most]


def _best_ranked(weights: Floats, keeps: Floats, count: int) -> list[IndexSet]:
    """Probable sets of the `count` best-ranked positions, each set as probable as the product of its weights."""
    products = weights / weights.max()
    order = (-products * keeps).argsort(kind="stable")
    total = np.ones(1 + len(order))
    for _ in range(count):  # sums over all sets of the first n positions
        total = np.concatenate(((0.0,), np.cumsum(products * total[:-1])))
    products *= keeps
    best, others = order[:count].tolist(), order[count : count + MOST_FALLBACKS - 1].tolist()
    probability = float(products[best].prod() / total[-1])
    sets = [(probability, tuple(sorted(best)))]
    for at in best[-MOST_FALLBACKS:]:
        for other in others:
            members = tuple(sorted({*best, other} - {at}))
            sets.append((probability * float(products[other] / max(products[at], CLIPPED)), members))
    return sets


def _joined(sets: Sequence[IndexSet], others: Sequence[IndexSet], most: int) -> list[IndexSet]:
    """The most probable unions of one set of each, both in descending order."""
    unions = [
        (probability * other_probability, members + other_members)
        for rank, (probability, members) in enumerate(sets, 1)
        for other_probability, other_members in others[: most // rank]
    ]
    return sorted(unions, reverse=True)[:most]


def _cheapest(costs: Sequence[float], members: Sequence[int], most: int) -> list[IndexSet]:
    """The empty set and the `most` subsets of least cost, with their costs. `costs` of the members, ascending."""
    subsets: list[IndexSet] = [(0.0, ())]
    heap: list[tuple[float, int, tuple[int, ...]]] = [(costs[0], 0, (members[0],))] if costs else []
    while heap and len(subsets) <= most:
        cost, last, subset = heapq.heappop(heap)
        subsets.append((cost, subset))
        following = last + 1
        if following < len(costs):
            member, more = members[following], cost + costs[following]
            heapq.heappush(heap, (more, following, (*subset, member)))
            heapq.heappush(heap, (more - costs[last], following, (*subset[:-1], member)))
    return subsets
