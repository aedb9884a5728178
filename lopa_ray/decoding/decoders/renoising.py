"""DiffusionGemma's decoder: canvases of random tokens, of which each call keeps what is certain and redraws the rest.

It is the loop of `generate` in transformers' `DiffusionGemmaForBlockDiffusion` with its entropy-bound sampler. A call
draws a token for each position of the canvas. Positions are accepted in ascending order of entropy, as long as the
entropies of all before add up to no more than a bound; all others get new random tokens, also positions that were
accepted before. The answer is what the last call finds most likely. As a call replaces any token of its canvas that is
not given, there is nothing that a fork of LoPA could fill ahead, or that a constraint could be kept at. A draft takes
the place of the random tokens that a canvas begins with, as `decoder_input_ids` there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from lopa_ray.config.generation_settings import CONSTRAINING, GenerationSettings
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.edits import PENALTIES
from lopa_ray.decoding.noise import SeededNoise
from lopa_ray.decoding.session import SAMPLING_SETTINGS, DecodeSession
from lopa_ray.protocol.outcome import BlockView, Decision, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.plan_inputs import ConditionedInputs, EncoderInputs
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import DenoiseTokens
from lopa_ray.protocol.step_report import BranchReport

ENCODED_ROWS = 256
"""Positions that rows of the encoder are cut by: prompts share stored K/V by so many, and attention is computed so."""

_DRAWN = "tokens are drawn at the temperatures from t_max to t_min; leave {} out"
_MOST_LIKELY = "the answer is what the model finds most likely, which it does not change; leave {} out"
_REPLACED = (
    "every token of a canvas may be replaced until its last call, so it can be kept at none; leave {} out"
)

_NOT_OF_DRAWS = ("seed", "ranking", "stop_token_ids", "top_logprobs")  # has a use for them, or another reason
_WITHOUT_USE = {
    **dict.fromkeys([name for name in SAMPLING_SETTINGS if name not in _NOT_OF_DRAWS], _DRAWN),
    **dict.fromkeys((*PENALTIES, "logit_bias"), _MOST_LIKELY),
    "ranking": "positions are ranked by entropy; leave {} out",
    **dict.fromkeys(("min_tokens", *CONSTRAINING), _REPLACED),
}
"""Settings that this decoder has no place for, and why."""


class RenoisingSettings(GenerationSettings):
    """DiffusionGemma: canvases of random tokens, denoised one after the other."""

    recommended_by_checkpoints: ClassVar[tuple[str, ...]] = (
        "max_denoising_steps",
        "entropy_bound",
        "t_min",
        "t_max",
        "stability_threshold",
        "confidence_threshold",
    )

    decoder: Literal["renoising"] = "renoising"

    max_denoising_steps: int = Field(default=48, ge=1, le=2**16)
    """Most calls on a canvas."""

    entropy_bound: float = Field(default=0.1, ge=0.0)
    """A call accepts its most certain positions as long as the entropies before (in nats) add up to no more."""

    t_min: float = Field(default=0.4, ge=0.0)
    """The temperature falls evenly from `t_max` in a canvas's first call, and would be this after the last."""

    t_max: float = Field(default=0.8, gt=0.0)
    """Temperature of a canvas's first call."""

    stability_threshold: int = Field(default=1, ge=0)
    """A canvas is final if this many calls before found the same tokens most likely, and the model is certain."""

    confidence_threshold: float = Field(default=0.005, ge=0.0)
    """The model is certain of a canvas if its mean entropy (in nats) is below this."""

    @property
    def refused(self) -> Mapping[str, str]:
        return _WITHOUT_USE


class RenoisingSession(DecodeSession):
    """One request under DiffusionGemma's decoder. A step is a call of the encoder, on what it has not read of prompt
    and finished canvases, or one of the decoder, on the canvas. Each decoder call is conditioned on the call before it
    on the same canvas."""

    settings: RenoisingSettings

    denoises_canvases = True

    def _begin(self) -> None:
        self.noise = SeededNoise(self.settings.seed, self.vocabulary.size)
        self._answer: list[int] = []  # tokens of finished canvases
        self._encoded = 0  # positions that the encoder has read
        self._canvas: tuple[int, ...] = ()  # as the next call gets it; empty before its first call
        self._likely: list[tuple[int, ...]] = []  # the most likely tokens in each call on the current canvas
        self._calls = 0  # calls of the decoder, on all canvases
        self._commit: Commit | None = None

    @property
    def _span(self) -> range:
        start = len(self.prompt) + len(self._answer)
        return range(start, start + self.vocabulary.canvas_length)

    def _view_stop(self, position: int) -> int:
        size = self.vocabulary.canvas_length
        return position + size - (position - len(self.prompt)) % size

    def _laid(self, tokens: Mapping[int, int], canvas: Iterable[int]) -> tuple[int, ...]:
        """The current canvas, with `tokens` in place, which are by offset in the answer."""
        return tuple(tokens.get(at, token) for at, token in enumerate(canvas, len(self._answer)))

    @property
    def generated(self) -> list[int]:
        """Finished canvases, and of the current one what is most likely. No mask is among them."""
        current = self._likely[-1] if self._likely else ()
        return [*self._answer, *current][: self.settings.max_new_tokens]

    @property
    def editable(self) -> range:
        return range(self._span.start, min(self._span.stop, self.max_len)) if self._likely else range(0)

    @property
    def exhausted(self) -> bool:
        return len(self._answer) >= self.settings.max_new_tokens

    @property
    def step_limit(self) -> int:
        """Each canvas has its calls, and one of the encoder before them."""
        num_canvases = -(-self.settings.max_new_tokens // self.vocabulary.canvas_length)
        return num_canvases * (self.settings.max_denoising_steps + 1)

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Parameters of draws, but for the temperature. The most likely token is the first of the top tokens."""
        return SamplingParams(ranking="neg_entropy", top_logprobs=max(1, self.settings.top_logprobs))

    # Plans

    def _plan(self, num_branches: int) -> Plan:
        known = (*self.prompt, *self._answer)
        return self._encoder_plan(known) if self._encoded < len(known) else self._decoder_plan()

    def _encoder_plan(self, known: Sequence[int]) -> Plan:
        start, stop = self._encoded, len(known)
        ends = (*range(start - start % ENCODED_ROWS + ENCODED_ROWS, stop, ENCODED_ROWS), stop)
        branch = Branch(tuple((end, end) for end in ends), range(stop, stop), to_stage=(range(start, stop),))
        return Plan(
            step=self.steps + 1,
            start=start,
            canvas=tuple(known[start:]),
            branches=(branch,),
            cached=(range(start),) if start else (),
            stage_shared=True,
            commit=self._commit,
            sampling_params=self.sampling_params,
            inputs=EncoderInputs(),
        )

    def _decoder_plan(self) -> Plan:
        span = self._span
        branch = Branch(
            ((span.stop, span.stop),),
            scored=span,
            to_stage=(range(span.start, span.start),),
            scoring=DenoiseTokens(self.noise.draws(self._calls + 1, span)),
        )
        return Plan(
            step=self.steps + 1,
            start=span.start,
            canvas=self._canvas
            or self._laid({**self.draft, **self.given.tokens}, self.noise.first_canvas(span)),
            branches=(branch,),
            cached=(range(span.start),),
            commit=self._commit,
            sampling_params=replace(self.sampling_params, temperature=self._temperature),
            scores_decided=True,
            inputs=ConditionedInputs(self.steps) if self._likely else None,
        )

    @property
    def _temperature(self) -> float:
        s = self.settings
        left = s.max_denoising_steps - len(self._likely)
        return s.t_min + (s.t_max - s.t_min) * left / s.max_denoising_steps

    # Reports

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        (report,) = reports
        self._commit = plan.commit_of(0)
        rule_steps: tuple[RuleStep, ...] = ()
        confidence = 0.0
        if isinstance(plan.inputs, EncoderInputs):
            self._encoded = plan.start + len(plan.canvas)
        else:
            confidence = report.scores.mean().item()
            rule_steps = (RuleStep(0, tuple(self._denoise(report))),)
        return StepOutcome(
            step=plan.step,
            winner=0,
            confidences=(confidence,),
            adopted=(),
            rule_steps=rule_steps,
            canvas=tuple(self.generated),
            blocks=self._block_views(),
            commit=self._commit,
            editable=self.editable,
        )

    def _denoise(self, report: BranchReport) -> list[Decision]:
        """Take in a call on the canvas. Returns the positions whose most likely token has changed; after a draft's last
        call, whose probabilities are what a read is for, all that are not given."""
        span, given = self._span, self.given.tokens
        self._calls += 1
        likely = self._laid(given, report.top_tokens[:, 0].tolist())
        before = self._likely[-1] if self._likely else (-1,) * len(span)
        free = [at for at in range(len(span)) if len(self._answer) + at not in given]
        entropies = -report.scores[free]
        is_final = self._is_final(likely, entropies)
        in_answer = [at for at in free if span.start + at < self.max_len]
        decided = [at for at in in_answer if likely[at] != before[at] or (is_final and self.draft)]
        self._likely = [*self._likely, likely]
        if is_final:
            # The signal of a canvas's last call conditions none.
            self._answer, self._canvas, self._likely = [*self._answer, *likely], (), []
            self._commit = None
        else:
            canvas = list(self.noise.new_tokens(self._calls, span))
            for at in accepted(entropies, self.settings.entropy_bound):
                canvas[free[at]] = report.tokens.item(free[at])
            self._canvas = self._laid(given, canvas)
        return [_decision(report, at, self.settings.top_logprobs) for at in decided]

    def _is_final(self, likely: tuple[int, ...], entropies: Any) -> bool:
        s, calls = self.settings, len(self._likely)
        if calls + 1 == s.max_denoising_steps:
            return True
        last = self._likely[max(0, calls - s.stability_threshold) :]
        is_stable = calls >= s.stability_threshold and all(other == likely for other in last)
        return is_stable and (not len(entropies) or bool(entropies.mean() < s.confidence_threshold))

    def _block_views(self) -> tuple[BlockView, ...]:
        now, length = self._span.start, self.vocabulary.canvas_length
        return tuple(
            BlockView(
                at,
                min(at + length, self.max_len),
                "active" if at == now else "in_cache" if at < self._encoded else "to_cache",
                masks=0,
                complete=at < now,
            )
            for at in range(len(self.prompt), now + bool(self._likely), length)
        )


def accepted(entropies: Any, bound: float) -> list[int]:
    """The positions that a call accepts, most certain first; always the first. `entropies` fp64 [positions]."""
    order = np.argsort(entropies, kind="stable")
    before = np.cumsum(entropies[order]) - entropies[order]
    positions: list[int] = order[(before <= bound) | (np.arange(len(order)) == 0)].tolist()
    return positions


def _decision(report: BranchReport, at: int, top: int) -> Decision:
    """The most likely token of a position, with the draw's probability if it was drawn, else without temperature."""
    tokens, logprobs = report.top_tokens[at].tolist(), report.top_logprobs[at].tolist()
    was_drawn = report.tokens.item(at) == tokens[0]
    probability = report.probabilities.item(at) if was_drawn else float(np.exp(logprobs[0]))
    tops = tuple(zip(tokens[:top], logprobs[:top], strict=True))
    return Decision(report.positions.item(at), tokens[0], probability, logprobs[0], tops)


RENOISING = Decoder(
    RenoisingSession, RenoisingSettings(max_new_tokens=32, max_denoising_steps=7, entropy_bound=1.0, seed=4)
)
