"""FillModel: what a threshold rule will probably fill in a state that has not been scored, by a report from before it.

A small network that is fitted beforehand (`lopa experiment fit-drafts`) and the same for all requests, so that
the drafts of a request depend on nothing but itself. It decides the number of steps, and with exact acceptance never a
token.

Shape suffixes: N masked positions, F features, H hidden units, B blocks.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lopa_ray.decoding.filling_session import RuleBlock
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
    "the block is complete",
    "the block's highest logit",
)

OUTPUTS = ("passes the threshold", "is the fallback", "keeps its token")
"""Logits of each position; of the second the softmax over a block counts."""

LEAST_PROBABILITY = 0.01
"""A position that passes with less is not in any fill set, other than as a fallback."""

MOST_FALLBACKS = 4
"""Positions that are looked at as the fallback of a block."""

CLIPPED = 1e-4
"""Probabilities are kept this far from 0 and 1."""

MAX_LOGIT = 20.0
"""Bound on the outputs of the network."""

Floats = npt.NDArray[np.float32]


FillSet = tuple[float, tuple[Fill, ...]]
"""Probability, and positions with tokens."""

IndexSet = tuple[float, tuple[int, ...]]
"""Probability, and indices of positions."""


class ReportFeatures(NamedTuple):
    """What the features of every state have from its report."""

    row_of: dict[int, int]
    """Position → row of the report."""
    positions: npt.NDArray[np.int32]
    logits: Floats
    scores: Floats
    tokens: list[int]


class FillModel:
    """A network of one hidden layer for each position, and one output for each block: whether anything passes."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        """`parameters` has the arrays of `lopa_lab.experiments.run.fit_fill_model`, as lists."""
        arrays = {name: np.array(values, np.float32) for name, values in parameters.items()}
        self._hidden, self._hidden_bias = arrays["hidden"], arrays["hidden_bias"]  # [F, H], [H]
        self._output, self._output_bias = arrays["output"], arrays["output_bias"]  # [H, 3], [3]
        self._mean, self._max = arrays["block_mean"], arrays["block_max"]  # [H] each
        self._count, self._block_bias = (float(value) for value in arrays["block"])

    @classmethod
    @lru_cache(3)
    def load(cls, ranking: str) -> Self:
        """The model for scores of a ranking, as it comes with the package."""
        text = files(__package__).joinpath("fill_models.json").read_text()
        return cls(json.loads(text)[ranking])

    def fill_sets(
        self,
        blocks: Sequence[RuleBlock],
        state: EvaluatedState,
        beyond: Iterable[int],
        threshold: float,
        most: int,
    ) -> list[FillSet]:
        """The `most` most probable fill sets of a state, the most probable first.

        `blocks` are its masked positions; `beyond` are the positions of tokens that it has and `state` has not. Without
        masks, or if the report of `state` has not scored all of them, nothing is known.
        """
        report = report_features(state, threshold)
        positions = [position for block in blocks for position in block.positions]
        known = [row for position in positions if (row := report.row_of.get(position)) is not None]
        if not positions or len(known) < len(positions):
            return []
        rows = np.array(known)
        units = features(blocks, report, rows, beyond) @ self._hidden + self._hidden_bias
        units /= 1 + np.exp(-units)
        outputs = units @ self._output + self._output_bias
        exponentials = np.exp(np.minimum(outputs, MAX_LOGIT))
        probabilities = exponentials / (1 + exponentials)
        sets: list[IndexSet] = []
        first = 0
        for block in blocks:
            span = slice(first, first := first + len(block.positions))
            any_passes = self._any_passes(units[span])
            passes, weights, keeps = probabilities[span, 0], exponentials[span, 1], probabilities[span, 2]
            of_block = _block_sets(span.start, passes, weights, keeps, any_passes, block.complete, most)
            sets = _joined(sets, of_block, most) if first > len(block.positions) else of_block
        return [
            (probability, tuple((positions[at], report.tokens[known[at]]) for at in chosen))
            for probability, chosen in sets
            if chosen
        ]

    def _any_passes(self, units: Floats) -> float:
        """The probability that any position of a block passes, from its hidden units [positions, H] float32."""
        mean, most = np.add.reduce(units) / len(units), np.maximum.reduce(units)
        logit = (
            float(self._mean @ mean + self._max @ most)
            + self._count * math.log1p(len(units))
            + self._block_bias
        )
        return 1 / (1 + math.exp(-max(-MAX_LOGIT, min(MAX_LOGIT, logit))))


def report_features(state: EvaluatedState, threshold: float) -> ReportFeatures:
    """The features that a report has for every state; computed once."""
    if state.cached_features is None:
        report = state.report
        probabilities = np.minimum(np.maximum(report.probabilities, CLIPPED), 1 - CLIPPED)
        clipped = min(max(threshold, CLIPPED), 1 - CLIPPED)
        logits = np.log(probabilities / (1 - probabilities)) - math.log(clipped / (1 - clipped))
        state.cached_features = ReportFeatures(
            {position: row for row, position in enumerate(report.positions.tolist())},
            report.positions,
            logits.astype(np.float32),
            report.scores.astype(np.float32),
            report.tokens.tolist(),
        )
    features: ReportFeatures = state.cached_features
    return features


def features(
    blocks: Sequence[RuleBlock], report: ReportFeatures, rows: npt.NDArray[np.int64], beyond: Iterable[int]
) -> Floats:
    """The features of all masked positions of a state, float32 [N, F]; see `FEATURES`. `rows`: theirs in the report."""
    table = np.zeros((len(rows), len(FEATURES)), np.float32)
    logits, scores = report.logits.take(rows), report.scores.take(rows)
    table[:, 0], table[:, 1] = logits, scores
    tokens_beyond = np.fromiter(beyond, np.int64)
    if len(tokens_beyond):
        distances = np.abs(report.positions.take(rows)[:, None] - tokens_beyond)
        table[:, 2] = 1 / np.minimum.reduce(distances, 1)
        table[:, 3] = math.log1p(len(tokens_beyond))
    first = 0
    for block in blocks:
        span = slice(first, first := first + len(block.positions))
        of_block = scores[span]
        order = (-of_block).argsort(kind="stable")
        of_span = table[span]
        of_span[order, 4] = np.reciprocal(np.arange(1, len(order) + 1, dtype=np.float32))
        of_span[order[0], 5] = 1
        of_span[:, 6] = of_block - of_block[order[0]]
        of_span[:, 7] = block.complete
        of_span[:, 8] = np.maximum.reduce(logits[span])
    return table


def _block_sets(
    first: int,
    passes: Floats,
    weights: Floats,
    keeps: Floats,
    any_passes: float,
    complete: bool,
    most: int,
) -> list[IndexSet]:
    """The most probable fill sets of a block whose positions have indices from `first` on, the most probable first.

    The columns, [positions] float32 each, are the probability that a position passes, its weight as a fallback, and the
    probability that it keeps its token. Given that any position passes, positions pass independently. If none does, a
    complete block fills one of them.
    """
    likely = (passes > LEAST_PROBABILITY).nonzero()[0]
    log_none = float(np.add.reduce(np.log1p(-np.minimum(passes, 1 - CLIPPED))))
    best, chosen, flips = log_none, set[int](), []
    columns = (likely + first).tolist(), passes[likely].tolist(), keeps[likely].tolist()
    for at, probability, kept in zip(*columns, strict=True):
        inside = min(probability * kept, 1 - CLIPPED)
        cost = math.log(inside / max(1 - probability, CLIPPED))
        flips.append((abs(cost), at))
        if cost > 0:
            chosen.add(at)
            best += cost
    flips.sort()
    factor = any_passes * math.exp(best) / max(1 - math.exp(log_none), CLIPPED)
    sets: dict[tuple[int, ...], float] = {}
    for cost, flipped in _cheapest(flips, most):
        members = tuple(sorted(chosen.symmetric_difference(flipped)))
        if members:
            sets[members] = factor * math.exp(-cost)
    if complete:
        chances = weights * keeps * ((1 - any_passes) / float(np.add.reduce(weights)))
        for at in chances.argsort()[-MOST_FALLBACKS:].tolist():
            sets[first + at,] = sets.get((first + at,), 0.0) + float(chances[at])
    else:
        sets[()] = 1 - any_passes
    ordered = sorted(((probability, members) for members, probability in sets.items()), reverse=True)
    return ordered[:most]


def _joined(sets: Sequence[IndexSet], others: Sequence[IndexSet], most: int) -> list[IndexSet]:
    """The most probable unions of one set of each, both in descending order."""
    unions = [
        (probability * other_probability, members + other_members)
        for rank, (probability, members) in enumerate(sets, 1)
        for other_probability, other_members in others[: most // rank]
    ]
    return sorted(unions, reverse=True)[:most]


def _cheapest(flips: Sequence[tuple[float, int]], most: int) -> Iterable[tuple[float, list[int]]]:
    """The empty set and the `most` subsets of least cost, with their costs. `flips`: cost and member, sorted."""
    yield 0.0, []
    heap = [(flips[0][0], [0])] if flips else []
    for _ in range(most):
        if not heap:
            return
        cost, members = heapq.heappop(heap)
        yield cost, [flips[index][1] for index in members]
        last = members[-1]
        if last + 1 < len(flips):
            following = flips[last + 1][0]
            heapq.heappush(heap, (cost + following, [*members, last + 1]))
            heapq.heappush(heap, (cost + following - flips[last][0], [*members[:-1], last + 1]))
