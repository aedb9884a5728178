"""FillModel: what a threshold rule will probably fill in a state that has not been scored, by a report from before it.

A small network that is fitted beforehand (`lopa experiment verified --fit`) and the same for all requests, so that
the drafts of a request depend on nothing but itself. It decides the number of steps, and never a token.

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

MOST_SETS = 8
"""Fill sets of a state that are looked at, the most probable ones."""

LEAST_PROBABILITY = 0.01
"""A position that passes with less is not in any fill set, other than as a fallback."""

CLIPPED = 1e-4
"""Probabilities are kept this far from 0 and 1."""

Floats = npt.NDArray[np.float32]

FillSet = tuple[float, tuple[Fill, ...]]
"""Probability, and positions with tokens."""


class ReportFeatures(NamedTuple):
    """What the features of every state have from its report."""

    row_of: dict[int, int]
    """Position → row of the report."""
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
        self, blocks: Sequence[RuleBlock], state: EvaluatedState, beyond: Iterable[int], threshold: float
    ) -> list[FillSet]:
        """The most probable fill sets of a state, the most probable first.

        `blocks` are its masked positions, which the report of `state` has scored; `beyond` are the positions of tokens
        that it has and `state` has not.
        """
        report = report_features(state, threshold)
        positions = [position for block in blocks for position in block.positions]
        units = features(blocks, report, beyond) @ self._hidden + self._hidden_bias
        units /= 1 + np.exp(-units)
        outputs = (units @ self._output + self._output_bias).tolist()
        sets: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
        first = 0
        for block in blocks:
            span = range(first, first := first + len(block.positions))
            of_block = units[span.start : span.stop]
            logit = float(self._mean @ of_block.mean(0) + self._max @ of_block.max(0))
            any_passes = _sigmoid(logit + self._count * math.log1p(len(span)) + self._block_bias)
            of_one = _block_sets(span, outputs, any_passes, block.complete)
            sets = (
                of_one
                if len(sets) == 1
                else heapq.nlargest(MOST_SETS, ((p * q, s + t) for p, s in sets for q, t in of_one))
            )
        return [
            (
                probability,
                tuple((positions[at], report.tokens[report.row_of[positions[at]]]) for at in chosen),
            )
            for probability, chosen in sets
            if chosen
        ]


def report_features(state: EvaluatedState, threshold: float) -> ReportFeatures:
    """The features that a report has for every state; computed once."""
    if state.cached_features is None:
        report = state.report
        probabilities = np.clip(report.probabilities, CLIPPED, 1 - CLIPPED)
        clipped = min(max(threshold, CLIPPED), 1 - CLIPPED)
        logits = np.log(probabilities / (1 - probabilities)) - math.log(clipped / (1 - clipped))
        state.cached_features = ReportFeatures(
            {position: row for row, position in enumerate(report.positions.tolist())},
            logits.astype(np.float32),
            report.scores.astype(np.float32),
            report.tokens.tolist(),
        )
    features: ReportFeatures = state.cached_features
    return features


def features(blocks: Sequence[RuleBlock], report: ReportFeatures, beyond: Iterable[int]) -> Floats:
    """The features of all masked positions of a state, float32 [N, F]; see `FEATURES`."""
    positions = [position for block in blocks for position in block.positions]
    rows = [report.row_of[position] for position in positions]
    table = np.zeros((len(rows), len(FEATURES)), np.float32)
    logits, scores = report.logits[rows], report.scores[rows]
    table[:, 0], table[:, 1] = logits, scores
    tokens_beyond = np.fromiter(beyond, np.int64)
    if len(tokens_beyond):
        table[:, 2] = 1 / np.abs(np.array(positions)[:, None] - tokens_beyond).min(1)
        table[:, 3] = math.log1p(len(tokens_beyond))
    first = 0
    for block in blocks:
        span = slice(first, first := first + len(block.positions))
        of_block = scores[span]
        order = np.argsort(-of_block, kind="stable")
        table[first - len(of_block) + order, 4] = 1 / np.arange(1, len(order) + 1)
        table[first - len(of_block) + order[0], 5] = 1
        table[span, 6] = of_block - of_block[order[0]]
        table[span, 7] = block.complete
        table[span, 8] = logits[span].max()
    return table


def _block_sets(
    span: range, outputs: Sequence[Sequence[float]], any_passes: float, complete: bool
) -> list[tuple[float, tuple[int, ...]]]:
    """The most probable fill sets of a block's positions, `span`, with their probabilities.

    Given that any position passes, positions pass independently. If none does, a complete block fills one of them.
    """
    none_passes, rest, best = 1.0, 1.0, 1.0
    flips: list[tuple[float, int]] = []
    chosen: set[int] = set()
    for at in span:
        passes, keeps = _sigmoid(outputs[at][0]), _sigmoid(outputs[at][2])
        none_passes *= 1 - passes
        if passes < LEAST_PROBABILITY:
            rest *= 1 - passes
            continue
        inside, outside = passes * keeps, max(1 - passes, 1e-9)
        if inside > outside:
            chosen.add(at)
        best *= max(inside, outside)
        flips.append((abs(math.log(inside / outside)), at))
    sets: dict[tuple[int, ...], float] = {}
    factor = any_passes * best * rest / max(1 - none_passes, 1e-6)
    for cost, flipped in _cheapest(sorted(flips)):
        members = tuple(sorted(chosen.symmetric_difference(flipped)))
        if members:
            sets[members] = factor * math.exp(-cost)
    if complete:
        utilities = [outputs[at][1] for at in span]
        most = max(utilities)
        weights = [math.exp(utility - most) for utility in utilities]
        scale = (1 - any_passes) / sum(weights)
        for weight, at in heapq.nlargest(MOST_SETS // 2, zip(weights, span, strict=True)):
            sets[at,] = sets.get((at,), 0.0) + scale * weight * _sigmoid(outputs[at][2])
    else:
        sets[()] = 1 - any_passes
    return heapq.nlargest(MOST_SETS, ((probability, members) for members, probability in sets.items()))


def _cheapest(flips: Sequence[tuple[float, int]]) -> Iterable[tuple[float, list[int]]]:
    """The `MOST_SETS` subsets of least cost, and one more: each with its cost and its members. `flips` is sorted."""
    yield 0.0, []
    heap = [(flips[0][0], [0])] if flips else []
    for _ in range(MOST_SETS):
        if not heap:
            return
        cost, members = heapq.heappop(heap)
        yield cost, [flips[index][1] for index in members]
        last = members[-1]
        if last + 1 < len(flips):
            following = flips[last + 1][0]
            heapq.heappush(heap, (cost + following, [*members, last + 1]))
            heapq.heappush(heap, (cost + following - flips[last][0], [*members[:-1], last + 1]))


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))
