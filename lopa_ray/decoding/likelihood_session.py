"""LikelihoodSession: a Monte-Carlo bound on the log-likelihood of given tokens, as a request like any other.

    log p(target | prefix) ≥ E over masks [ L ÷ masked positions × Σ over masked positions log p(token | the rest) ]

This is equation 6 of LLaDA (arXiv 2502.09992); a forward with full attention over prefix and target gives all terms of
a draw. L is the target's length. As in its evaluation code, the draws' numbers of masks lie evenly apart, from a random
first one on, and wrap around.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Self

import numpy as np
import numpy.typing as npt

from lopa_ray.decoding.request_checks import check_known
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.keyed_random import keyed_uniform, keyed_uniforms
from lopa_ray.protocol.outcome import FinishReason, StepOutcome
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.scoring import ScoreTargets
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

DEFAULT_MC_NUM = 128  # draws of an estimate; LLaDA's number


@dataclass(frozen=True, slots=True, eq=False)
class MaskDraws:
    """The distinct masks of all draws, which matter by how often they were drawn. L: positions of the target."""

    masks: npt.NDArray[np.bool_]  # [distinct masks, L], in lexicographic order; True: masked
    weights: npt.NDArray[np.float64]
    """[distinct masks]: the factor of the summed log-probabilities of a mask's positions. It is L ÷ masked positions
    × the share of the draws that had this mask."""

    @classmethod
    def of(cls, length: int, mc_num: int, key: int) -> Self:
        """`mc_num` draws for a target of `length` tokens, 1 or more each, by a key of 64 bits."""
        position = np.arange(length)
        masks = np.zeros((mc_num, length), np.bool_)
        for draw, num_masked in enumerate(num_masked_of_draws(length, mc_num, key)):
            seeds, steps = np.full(length, key, np.uint64), np.full(length, draw + 1)
            order = np.argsort(keyed_uniforms(seeds, steps, position), kind="stable")
            masks[draw, order[:num_masked]] = True
        distinct, counts = np.unique(masks, axis=0, return_counts=True)
        return cls(distinct, counts / mc_num * length / distinct.sum(1))


def num_masked_of_draws(length: int, mc_num: int, key: int) -> list[int]:
    """How many of `length` positions each draw masks. Halves are rounded up, so that every number is as likely as any
    other; LLaDA's code rounds them to even numbers, by which 3 of 4 draws from 2 positions mask both."""
    first = 1 + int(keyed_uniform(key, 0, 0) * length)
    apart = ((2 * draw * length + mc_num) // (2 * mc_num) for draw in range(mc_num))
    return [(first + steps - 1) % length + 1 for steps in apart]


def draw_key(seed: int, prefix: list[int], target: list[int]) -> int:
    """64 bits that depend on the seed and the tokens alone, so that a request has the same draws wherever it runs."""
    numbers = np.array([seed, len(prefix), *prefix, *target], "<i8")
    return int.from_bytes(blake2b(numbers.tobytes(), digest_size=8).digest(), "little")


class LikelihoodSession(RequestSession):
    """One target's bound: each branch is a distinct mask of the target, and no position is ever filled.
    `StepOutcome.confidences` are what each branch adds to the bound, in nats: their sum over all steps is the bound. It
    depends on `mc_num`, `seed` and the tokens alone. It has no variance for a target of one token, which takes one
    forward; longer targets take as many as there are distinct masks among the draws."""

    def __init__(
        self,
        prefix: Sequence[int],
        target: Sequence[int],
        vocabulary: Vocabulary,
        *,
        mc_num: int = DEFAULT_MC_NUM,
        seed: int = 0,
        masks_per_step: int = 1,
    ) -> None:
        """`masks_per_step` says how many forwards of `target` a step has at most; the bound does not depend on it.
        Raises PromptError as `RequestSession` does, and for such ids in the target; SettingsError for `mc_num` below 1,
        and for a model without a mask token."""
        if vocabulary.canvas_length:
            what = "this model has no mask token, and so no masked targets; use another model"
            raise SettingsError(f"log-likelihoods: {what}")
        if mc_num < 1:
            raise SettingsError(f"mc_num: got {mc_num}; allowed: 1 or more draws")
        check_known(target, vocabulary, "the target")
        super().__init__(prefix, vocabulary, len(target))
        self.target, self.mc_num, self.seed = list(target), mc_num, seed
        self.masks_per_step = masks_per_step
        self._evaluated = 0  # masks that steps have evaluated

    @cached_property
    def draws(self) -> MaskDraws:
        key = draw_key(self.seed, self.prompt, self.target)
        return MaskDraws.of(len(self.target), self.mc_num, key)

    @property
    def step_limit(self) -> int:
        """Each step evaluates a mask at least."""
        return len(self.draws.masks)

    def branches_in_step(self, in_flight: int | None = None) -> int:
        return self.masks_per_step

    def _plan(self, num_branches: int) -> Plan:
        first, stop = len(self.prompt), self.max_len
        masks = self.draws.masks[self._evaluated : self._evaluated + num_branches]
        span, targets = range(first, stop), ScoreTargets(tuple(self.target))
        canvas = (*self.prompt, *[self.vocabulary.mask_token_id] * len(self.target))
        branches: list[Branch] = []
        for mask in masks:
            fills = tuple((first + at, self.target[at]) for at in np.flatnonzero(~mask).tolist())
            branches.append(Branch(((stop, stop),), span, fills, scoring=targets))
        return Plan(self.steps + 1, 0, canvas, branches=tuple(branches), cached=())

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        weights = self.draws.weights[self._evaluated : self._evaluated + len(reports)]
        self._evaluated += len(reports)
        sums = [float(report.logprobs.sum(dtype=np.float64)) for report in reports]
        terms = tuple(weight * total for weight, total in zip(weights.tolist(), sums, strict=True))
        return StepOutcome(step=plan.step, winner=0, confidences=terms)

    def _finish_reason(self) -> FinishReason | None:
        return "length" if self._evaluated == len(self.draws.masks) else None
