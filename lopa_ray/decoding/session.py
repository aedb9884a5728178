"""DecodeSession: a request whose answer is decoded. Decoders are subclasses of `FillingSession`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.decoding.branch_budget import BranchSettings, branches_in_step
from lopa_ray.decoding.branching import scores_by_position
from lopa_ray.decoding.given_tokens import GivenTokens, encode_given, final_part, length_through_end
from lopa_ray.decoding.request_checks import (
    check_constraint,
    check_decoder,
    check_draft,
    check_generated,
    check_given,
    check_holes_see,
)
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.protocol.logit_changes import LogitChanges, pack_ids
from lopa_ray.protocol.outcome import FinishReason, StepOutcome
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

SAMPLING_SETTINGS = [f.name for f in fields(SamplingParams) if f.name in GenerationSettings.model_fields]
"""Settings that are sampling parameters of the same name."""


class DecodeSession(RequestSession):
    """One request's decoding. Subclasses hold the canvas and the rule that fills it."""

    denoises_canvases: ClassVar[bool] = False
    """Whether the decoder is for models whose canvases begin as random tokens, and not for models that fill masks."""

    @property
    def may_decide_nothing(self) -> bool:
        """Whether a correct step may score masks and decide none of them."""
        return False

    def __init__(
        self,
        prompt: Sequence[int],
        settings: GenerationSettings,
        vocabulary: Vocabulary,
        constraint: Constraint | None = None,
        given: GivenTokens | None = None,
    ) -> None:
        """Start decoding after `prompt`, under the `constraint` of the settings' pattern, if they have one. `given` is
        what they give of the answer; None: they give token ids, or nothing. Raises PromptError as `RequestSession`, and
        SettingsError for a decoder that is not for this kind of model, for a constraint that no answer of this length
        can keep, for a stop token, a token of `logit_bias`, a given token or one of a draft outside the vocabulary, for
        a draft that does not fit or is text, or for given tokens that do not fit, or lie where a hole before them does
        not see them."""
        check_decoder(settings, vocabulary, self.denoises_canvases)
        super().__init__(prompt, vocabulary, settings.max_new_tokens)
        check_generated(settings.stop_token_ids, vocabulary, "stop_token_ids")
        self.settings = settings
        self.constraint = constraint
        self.given = GivenTokens.of(settings, None) if given is None else given
        """The tokens of the answer that are decided before the first step."""
        check_given(self.given, settings, vocabulary, self.end_token_ids)
        self.draft = self._checked_draft()
        """The tokens that the answer begins with, by offset, without masks and what is given."""
        self.logit_changes = self._initial_logit_changes()
        beginning = self.given.canvas(self.given.end, vocabulary.mask_token_id)
        check_constraint(constraint, self._constraint_state(beginning), settings, self.given)
        self._begin()
        if self.given.holes:
            first_hole = len(self.prompt) + self.given.holes[0].start
            check_holes_see(self.given, self._view_stop(first_hole) - len(self.prompt), settings)

    def _checked_draft(self) -> Mapping[int, int]:
        draft, given = self.settings.draft or (), self.given.tokens
        ids = encode_given(draft, "draft", None) if isinstance(draft, str) else draft
        check_draft(ids, self.given, self.settings, self.vocabulary, self.end_token_ids)
        mask = self.vocabulary.mask_token_id
        return {at: token for at, token in enumerate(ids) if token != mask and at not in given}

    def _initial_logit_changes(self) -> LogitChanges | None:
        """The changes before anything is decided; None if the settings ask for none. No penalty counts the tokens that
        end an answer: they fill the canvas after its end, and close the turns of a chat in the prompt."""
        settings, vocabulary = self.settings, self.vocabulary
        check_generated(settings.logit_bias, vocabulary, "logit_bias", "token ")
        ending_ids = (vocabulary.eos_token_id, *vocabulary.stop_token_ids, *settings.stop_token_ids)
        changes = LogitChanges(
            settings.repetition_penalty,
            settings.frequency_penalty,
            settings.presence_penalty,
            biased=pack_ids(settings.logit_bias),
            biases=np.fromiter(settings.logit_bias.values(), np.float64).tobytes(),
            uncounted_ids=(vocabulary.mask_token_id, *ending_ids),
            prompt=b""
            if settings.repetition_penalty == 1
            else pack_ids(sorted({*self.prompt} - {*ending_ids})),
        )
        return changes if changes.has_penalties or changes.biased else None

    # What a decoder provides

    @classmethod
    def variant(cls, settings: GenerationSettings) -> type[DecodeSession]:
        """The class that decodes under these settings."""
        return cls

    @abstractmethod
    def _begin(self) -> None:
        """Set up what steps change; prompt, settings, vocabulary and given tokens are there."""

    @property
    @abstractmethod
    def generated(self) -> list[int]:
        """Ids after the prompt as they stand, masks included."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Nothing is masked and nothing more may be added."""

    def _view_stop(self, position: int) -> int:
        """End of what is seen where a masked position is decided."""
        return self.max_len

    @property
    def editable(self) -> range:
        """See `StepOutcome.editable`."""
        return range(0)

    @property
    def step_limit(self) -> int:
        """Each step decides at least one token."""
        return self.settings.max_new_tokens

    # What every decoder shares

    def advance(self, reports: Sequence[BranchReport]) -> StepOutcome:
        outcome = super().advance(reports)
        if not self.settings.top_logprobs:
            return outcome
        winner = next(report for report in reports if report.branch == outcome.winner)
        scores = scores_by_position(winner.with_tops(self.settings.top_logprobs))
        return replace(outcome, considered=tuple(score.decision for score in scores.values()))

    def branches_in_step(self, in_flight: int | None = None) -> int:
        return branches_in_step(self.settings, in_flight)

    @property
    def weighs_costs(self) -> bool:
        return isinstance(self.settings, BranchSettings) and self.settings.weighs_costs

    def _constraint_state(self, answer: Sequence[int]) -> ConstraintState | None:
        """The constraint laid over an answer as it stands; None without a constraint."""
        if self.constraint is None:
            return None
        span = range(len(self.prompt), self.max_len)
        mask, min_tokens = self.vocabulary.mask_token_id, self.settings.min_tokens
        return ConstraintState(self.constraint, answer, mask, span, min_tokens, self.given.holes)

    @cached_property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end the answer: the checkpoint's, unless the settings ignore them, and the settings' own."""
        vocabulary = self.vocabulary
        of_checkpoint = (vocabulary.eos_token_id, *vocabulary.stop_token_ids)
        return (*(() if self.settings.ignore_eos else of_checkpoint), *self.settings.stop_token_ids)

    def has_ended(self, answer: Sequence[int]) -> bool:
        """Whether a token ends an answer, which may have masks. One before the last given token ends a hole."""
        return not frozenset(self.end_token_ids).isdisjoint(answer[self.given.end :])

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """The parameters with which workers choose tokens for this request."""
        s, eos = self.settings, self.vocabulary.eos_token_id
        ends_but_eos = tuple(token for token in self.end_token_ids if token != eos)
        return replace(
            SamplingParams(**{name: getattr(s, name) for name in SAMPLING_SETTINGS}),
            draws=bool(s.trajectory),
            seed=s.seed if s.temperature > 0 else 0,  # requests that sample alike are scored in one call
            no_eos_before=len(self.prompt) + s.min_tokens if s.min_tokens else 0,
            stop_token_ids=ends_but_eos if s.min_tokens else (),
        )

    @property
    def step_logit_changes(self) -> LogitChanges | None:
        """The changes of logits on the answer as it stands."""
        return None if self.logit_changes is None else self.logit_changes.with_answer(self.generated)

    def _finish_reason(self) -> FinishReason | None:
        answer = self.generated
        final = final_part(answer, self.editable, len(self.prompt))
        if self.settings.stop_at_eos and self._is_decided(final):
            return "stop"
        if not self.exhausted:
            return None
        ends = self.end_token_ids
        last_hole = self.given.holes_within(self.settings.max_new_tokens)[-1]
        has_ended = length_through_end(answer[last_hole.start : last_hole.stop], ends) is not None
        text = self.given.whole_text(answer, ends)
        whole = self.constraint is not None and self.constraint.is_complete_match(text)
        return "stop" if has_ended or whole else "length"

    def _is_decided(self, answer: Sequence[int]) -> bool:
        """Whether an answer has a token that ends it, and no mask before that."""
        end = self.given.end
        length = length_through_end(answer[end:], self.end_token_ids)
        return length is not None and self.vocabulary.mask_token_id not in answer[: end + length]
