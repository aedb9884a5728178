"""LikelihoodSession: a Monte-Carlo bound on the log-likelihood of given tokens, as a request like any other.

    log p(target | prefix) ≥ E over masks [ L ÷ masked positions × Σ over masked positions log p(token | the rest) ]

This is equation 6 of LLaDA (arXiv 2502.09992); a forward with full attention over prefix and target gives all terms of
a draw. L is the target's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from lopa_ray.decoding.mask_draws import MaskDraws, draw_key
from lopa_ray.decoding.request_checks import check_known
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.outcome import FinishReason, StepOutcome
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

DEFAULT_MC_NUM = 128
"""Draws of an estimate; LLaDA's number."""


class LikelihoodSession(RequestSession):
    """One target's bound: each branch is a distinct mask of the target, and no position is ever filled.

    `StepOutcome.confidences` are what each branch adds to the bound, in nats: their sum over all steps is the bound.
    It depends on `mc_num`, `seed` and the tokens alone. It has no variance for a target of one token, which takes one
    forward; longer ones take as many as there are distinct masks among the draws.
    """

    immutable_attributes: ClassVar[tuple[str, ...]] = (
        *RequestSession.immutable_attributes,
        *("target", "mc_num", "seed", "masks_per_step", "_draws"),
    )

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
        and for a model without a mask token.
        """
        if vocabulary.canvas_length:
            raise SettingsError(
                "log-likelihoods: this model has no mask token, and so no masked targets; use another model"
            )
        if mc_num < 1:
            raise SettingsError(f"mc_num: got {mc_num}; allowed: 1 or more draws")
        check_known(target, vocabulary, "the target")
        super().__init__(prefix, vocabulary, len(target))
        self.target, self.mc_num, self.seed = list(target), mc_num, seed
        self.masks_per_step = masks_per_step
        self._evaluated = 0
        """Masks that steps have evaluated."""

    @cached_property
    def _draws(self) -> MaskDraws:
        key = draw_key(self.seed, self.prompt, self.target)
        return MaskDraws.of(len(self.target), self.mc_num, key)

    @property
    def step_limit(self) -> int:
        """Each step evaluates a mask at least."""
        return len(self._draws.masks)

    def branches_in_step(self, in_flight: int | None = None) -> int:
        return self.masks_per_step

    def _plan(self, num_branches: int) -> Plan:
        first, stop = len(self.prompt), self.max_len
        masks = self._draws.masks[self._evaluated : self._evaluated + num_branches]
        return Plan(
            step=self.steps + 1,
            start=0,
            canvas=(*self.prompt, *[self.vocabulary.mask_token_id] * len(self.target)),
            branches=tuple(
                Branch(
                    segments=((stop, stop),),
                    scored=range(first, stop),
                    fills=tuple((first + at, self.target[at]) for at in np.flatnonzero(~mask).tolist()),
                )
                for mask in masks
            ),
            cached=(),
            targets=tuple(self.target),
        )

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        weights = self._draws.weights[self._evaluated : self._evaluated + len(reports)]
        terms = zip(weights.tolist(), reports, strict=True)
        self._evaluated += len(reports)
        return StepOutcome(
            step=plan.step,
            winner=0,
            confidences=tuple(
                weight * float(report.logprobs.sum(dtype=np.float64)) for weight, report in terms
            ),
        )

    def _finish_reason(self) -> FinishReason | None:
        return "length" if self._evaluated == len(self._draws.masks) else None
