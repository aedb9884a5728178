"""Fast-dLLM's dual cache for Dream (arXiv 2505.22618, sections 3.2 and 3.3).

The whole answer is masked from the start and decided block by block. A block begins with
one forward over everything, which caches the K/V of all other positions and decides the
block's first position; then only the block is fed, against what surrounds it on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lopa_ray.branching import Score, admit, forced, scores_by_position
from lopa_ray.constraint import ChoiceSets, Constraint, Fit
from lopa_ray.errors import SettingsError
from lopa_ray.plan import BlockView, Branch, BranchReport, Commit, Plan, Spans, StepOutcome
from lopa_ray.selection import DONE, mean
from lopa_ray.session import DecodeSession, Vocabulary
from lopa_ray.settings import FastDllmSettings, GenerationSettings

FINAL_NOISE = 1e-3
"""Noise level at which the fixed schedule ends (`eps` of the published samplers)."""


class FastDllmSession(DecodeSession):
    """One request under the dual cache; always a single branch."""

    settings: FastDllmSettings

    def __init__(
        self,
        prompt: Sequence[int],
        settings: GenerationSettings,
        vocabulary: Vocabulary,
        constraint: Constraint | None = None,
    ) -> None:
        """As `DecodeSession`; `settings` must be `FastDllmSettings`.

        Raises SettingsError for `fill: schedule` under a constraint.
        """
        super().__init__(prompt, settings, vocabulary, constraint)
        if constraint is not None and self.settings.fill == "schedule":
            raise SettingsError(
                "fill: got schedule with structured output, which cannot fill a fixed number of positions per "
                "step: some rule each other out; use fill: threshold"
            )
        self._ids = self.prompt + [vocabulary.mask_token_id] * settings.max_new_tokens
        self._block = self._block_at(len(self.prompt))
        self._calls = 0
        """Forwards that the current block has had."""
        self._commit: Commit | None = None

    def _block_at(self, start: int) -> range:
        return range(start, min(start + self.settings.block_size, self.max_len))

    @property
    def generated(self) -> list[int]:
        """Ids after the prompt as they stand, masks included."""
        return self._ids[len(self.prompt) :]

    @property
    def exhausted(self) -> bool:
        """Nothing is masked."""
        return not self._masked(range(self._block.start, self.max_len))

    @property
    def step_limit(self) -> int:
        """A schedule may plan steps that decide nothing; otherwise each decides a token."""
        return max(self.settings.max_new_tokens, self.settings.steps or 0)

    def _masked(self, span: range) -> list[int]:
        return [p for p in span if self._ids[p] == self.vocabulary.mask_token_id]

    @property
    def _surroundings(self) -> Spans:
        around = (range(self._block.start), range(self._block.stop, self.max_len))
        return tuple(span for span in around if span)

    def _plan(self, num_branches: int) -> Plan:
        block, total = self._block, self.max_len
        rebuild = self._calls == 0
        fed = range(total) if rebuild else block
        scored = range(block.start, block.start + 1) if rebuild else block
        choices = ChoiceSets()
        return Plan(
            epoch=0,
            step=0,
            start=fed.start,
            canvas=tuple(self._ids[fed.start : fed.stop]),
            branches=(Branch(((fed.stop, total),), choices=choices.add(self._fit(self.generated), scored)),),
            cached=() if rebuild else self._surroundings,
            scored=scored,
            keep=self._surroundings if rebuild else (),
            commit=self._commit,
            sampling=self.sampling,
            choices=choices.sets,
        )

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        (report,) = reports
        scores = scores_by_position(report)
        fit = self._fit(self.generated)
        wanted = [scores[p].decision for p in sorted(self._chosen(scores, fit))]
        filled = tuple(admit(fit, wanted, scores))
        for decision in filled:
            self._ids[decision.position] = decision.token
        self._commit = Commit(plan.step, 0, plan.keep, shared=False) if plan.keep else None
        self._calls += 1
        if not self._masked(self._block) and self._block.stop < self.max_len:
            self._block = self._block_at(self._block.stop)
            self._calls = 0
        ranked = report.scores.tolist()
        return StepOutcome(
            step=plan.step,
            winner=0,
            confidences=(mean()(ranked) if ranked else DONE,),
            adopted=(),
            filled=filled,
            canvas=tuple(self.generated),
            blocks=self._views(),
        )

    def _chosen(self, scores: dict[int, Score], fit: Fit | None) -> list[int]:
        """Positions to fill: all of the first call's, then by confidence or by schedule."""
        settings = self.settings
        calls = settings.steps_per_block
        last = settings.fill == "schedule" and self._calls == calls - 1
        if self._calls == 0 or last:
            return list(scores)
        ranked = sorted(scores, key=lambda p: -scores[p].score)
        if settings.fill == "threshold":
            sure = settings.confidence_threshold
            return [p for p in ranked if scores[p].probability >= sure or forced(fit, p)] or ranked[:1]
        # The published schedule is computed in float32, and its product is cut to an integer.
        times = np.linspace(1, FINAL_NOISE, calls + 1, dtype=np.float32)
        share = np.float32(1) - times[self._calls + 1] / times[self._calls]
        return ranked[: int(np.float32(len(ranked)) * share)]

    def _views(self) -> tuple[BlockView, ...]:
        views = [BlockView(0, len(self.prompt), "in_cache", 0, True)]
        block = self._block_at(len(self.prompt))
        while block:
            masks = len(self._masked(block))
            current = block.start <= self._block.start
            views.append(
                BlockView(block.start, block.stop, "active" if masks else "in_cache", masks, current)
            )
            block = self._block_at(block.stop)
        return tuple(views)
