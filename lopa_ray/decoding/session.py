"""DecodeSession: the sans-I/O core of every decoder.

A session decides everything about one request (branches, fills, what is cached, who won)
from the reports it is handed. It touches neither torch, nor Ray, nor a clock, so the same
session runs in one process, on any number of workers, and through their failures:

    while not session.finished:
        plan = session.plan()
        outcome = session.advance(reports_for(plan))

Decoders are subclasses of `FillingSession`. A session of another kind has three methods: `_begin`, `_plan`, `_advance`.
"""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.decoding.answer_ends import length_through_end
from lopa_ray.decoding.branch_budget import requested_branches
from lopa_ray.decoding.given_tokens import GivenTokens
from lopa_ray.decoding.initial_logit_changes import initial_logit_changes
from lopa_ray.decoding.request_checks import (
    check_constraint,
    check_decoder,
    check_given,
    check_holes_see,
    check_prompt,
    check_stop_tokens,
)
from lopa_ray.decoding.result import final_part
from lopa_ray.errors import ProtocolError, ScoreError, StepLimitError
from lopa_ray.protocol.outcome import FinishReason, StepOutcome
from lopa_ray.protocol.plan import Plan, ScheduledRequest
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

SAMPLING_SETTINGS = [
    field.name for field in fields(SamplingParams) if field.name in GenerationSettings.model_fields
]
"""Settings that are sampling parameters of the same name."""


class DecodeSession(ABC):
    """One request's decoding. Subclasses hold the canvas and the rule that fills it."""

    immutable_attributes: ClassVar[tuple[str, ...]] = (
        "prompt",
        "settings",
        "vocabulary",
        "constraint",
        "given",
        "logit_changes",
        "sampling_params",
        "end_token_ids",
        "replay",
        "client",
        "priority",
    )
    """What no step of a session changes."""

    planned_attributes: ClassVar[tuple[str, ...]] = ("_pending_plan", "_branches")
    """All that `plan` changes. It belongs to the coming step alone, and is made anew when that is planned again."""

    denoises_canvases: ClassVar[bool] = False
    """Whether the decoder is for models whose canvases begin as random tokens, and not for those that fill masks."""

    def __init__(
        self,
        prompt: Sequence[int],
        settings: GenerationSettings,
        vocabulary: Vocabulary,
        constraint: Constraint | None = None,
        given: GivenTokens | None = None,
    ) -> None:
        """Start decoding after `prompt`; `constraint` is that of the settings' pattern, if they have one, and `given`
        what they give of the answer. None: they give token ids, or nothing.

        Raises PromptError for an empty prompt, ids outside the vocabulary, or mask tokens in
        the prompt (the published decoders fill those or hang on them; here they are refused),
        and SettingsError for a decoder that is not for this kind of model, for a constraint that no answer of this
        length can keep, for a stop token or a token of `logit_bias` that is none, or for given tokens that are none,
        do not fit, or lie where a hole in front of them does not see them.
        """
        check_decoder(settings, vocabulary, self.denoises_canvases)
        check_prompt(prompt, vocabulary)
        check_stop_tokens(settings, vocabulary)
        self.prompt = list(prompt)
        self.settings = settings
        self.vocabulary = vocabulary
        self.constraint = constraint
        self.given = GivenTokens.of(settings, None) if given is None else given
        """The tokens of the answer that are decided before the first step."""
        check_given(self.given, settings, vocabulary, self.end_token_ids)
        self.logit_changes = initial_logit_changes(settings, prompt, vocabulary)
        self.replay: tuple[ScheduledRequest, ...] = ()
        """Steps that a cache without K/V of the request must carry out before the next step; see `Journal`."""
        self.client = ""
        """Whose request it is; see `lopa_ray.scheduling.fair_queue`."""
        self.priority = 0
        """Of the requests of one client, those with the lowest value get slots first."""
        beginning = self.given.canvas(self.given.end, vocabulary.mask_token_id)
        check_constraint(constraint, self._constraint_state(beginning), settings, self.given)
        self.steps = 0
        self.forwards = 0
        self.finish_reason: FinishReason | None = "length" if settings.max_new_tokens == 0 else None
        self._pending_plan: Plan | None = None
        self._begin()
        if self.given.holes:
            first_hole = len(self.prompt) + self.given.holes[0].start
            check_holes_see(self.given, self._view_stop(first_hole) - len(self.prompt), settings)

    # What a decoder provides

    @abstractmethod
    def _begin(self) -> None:
        """Set up what steps change; prompt, settings, vocabulary and given tokens are there."""

    @abstractmethod
    def _plan(self, num_branches: int) -> Plan:
        """The next step's plan, of at most `num_branches` branches."""

    @abstractmethod
    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        """Take in one report per planned branch, in order; decide and fill."""

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
        """More steps than any correct run takes: each one decides at least one token."""
        return self.settings.max_new_tokens

    # What every decoder shares

    def _constraint_state(self, answer: Sequence[int]) -> ConstraintState | None:
        """The constraint laid over an answer as it stands; None without a constraint."""
        if self.constraint is None:
            return None
        span = range(len(self.prompt), self.max_len)
        mask, min_tokens = self.vocabulary.mask_token_id, self.settings.min_tokens
        return ConstraintState(self.constraint, answer, mask, span, min_tokens, self.given.holes)

    @property
    def finished(self) -> bool:
        """No further step is needed."""
        return self.finish_reason is not None

    @property
    def max_len(self) -> int:
        """Positions that prompt and answer may take up at most."""
        return len(self.prompt) + self.settings.max_new_tokens

    @cached_property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end the answer: the checkpoint's, unless the settings ignore them, and those of the settings."""
        vocabulary = self.vocabulary
        of_checkpoint = (vocabulary.eos_token_id, *vocabulary.stop_token_ids)
        return (*(() if self.settings.ignore_eos else of_checkpoint), *self.settings.stop_token_ids)

    @property
    def _end_token_ids_but_eos(self) -> tuple[int, ...]:
        return tuple(token for token in self.end_token_ids if token != self.vocabulary.eos_token_id)

    def has_ended(self, answer: Sequence[int]) -> bool:
        """Whether a token ends an answer, which may have masks. One before the last given token ends a hole."""
        return not frozenset(self.end_token_ids).isdisjoint(answer[self.given.end :])

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """The parameters with which workers choose tokens for this request."""
        s = self.settings
        return replace(
            SamplingParams(**{name: getattr(s, name) for name in SAMPLING_SETTINGS}),
            seed=s.seed if s.temperature > 0 else 0,  # requests that sample alike are scored in one call
            no_eos_before=len(self.prompt) + s.min_tokens if s.min_tokens else 0,
            stop_token_ids=self._end_token_ids_but_eos if s.min_tokens else (),
        )

    def plan(self, num_branches: int | None = None) -> Plan:
        """The current step's plan, of at most `num_branches` branches.

        Without `num_branches` the settings alone decide; see `lopa_ray.decoding.branch_budget`.

        Until `advance` has taken its reports the plan stays the same, so a step that was lost with a worker
        can be run once more.

        Raises StepLimitError when more steps were used than any correct run can use (the
        published decoders loop for ever when the model keeps predicting the mask token),
        and ProtocolError when the request is finished.
        """
        if self.finished:
            raise ProtocolError("this request is finished; there is nothing left to plan")
        if self._pending_plan is None:
            if self.steps >= self.step_limit:
                raise StepLimitError(
                    f"{self.steps} steps did not finish {self.settings.max_new_tokens} tokens, though each step "
                    "decides at least one; this is a bug or a broken model, please report it"
                )
            plan = self._plan(num_branches or requested_branches(self.settings))
            if self.logit_changes is not None:
                plan = replace(plan, logit_changes=self.logit_changes.with_answer(self.generated))
            self._pending_plan = plan
        return self._pending_plan

    @property
    def next_branch_rows(self) -> int:
        """Rows of the longest branch of the next step. The session stays as it is. Raises as `plan`."""
        return self.with_state(self.export_state(), ()).plan().max_branch_rows

    def advance(self, reports: Sequence[BranchReport]) -> StepOutcome:
        """Take in the reports of the pending plan, in any order, one per branch.

        Raises ProtocolError, and changes nothing, if a report belongs to another step, if branches are
        missing or doubled, or if nothing was planned; likewise ScoreError if a score is NaN. Reports of
        another epoch do not get here; see `Scheduler.advance`.
        """
        plan = self._pending_plan
        if plan is None:
            raise ProtocolError("no step is planned; call plan() first")
        ordered = sorted(reports, key=lambda report: report.branch)
        for report in ordered:
            if report.step != plan.step:
                raise ProtocolError(f"got a report of step {report.step}; this is step {plan.step}")
        if [report.branch for report in ordered] != list(range(len(plan.branches))):
            raise ProtocolError(
                f"got reports of branches {[report.branch for report in ordered]}; "
                f"the plan has branches 0 to {len(plan.branches) - 1}"
            )
        self._check_scores(plan, ordered)
        self._pending_plan = None
        self.steps += 1
        self.forwards += len(ordered)
        outcome = self._advance(plan, ordered)
        self.finish_reason = self._finish_reason()
        return replace(outcome, finish_reason=self.finish_reason)

    def _check_scores(self, plan: Plan, reports: Sequence[BranchReport]) -> None:
        """Raises ScoreError if a score is NaN."""
        if np.isnan(np.concatenate([report.scores for report in reports])).any():
            raise ScoreError(
                f"the model's scores in step {plan.step} are NaN; its weights are broken, or its "
                "activations exceed the dtype: use bfloat16 or float32"
            )

    def export_state(self) -> bytes:
        """All that steps have changed, for `with_state`; the same before and after the next step is planned."""
        left_out = {*self.immutable_attributes, *self.planned_attributes}
        return pickle.dumps({name: value for name, value in vars(self).items() if name not in left_out})

    def with_state(self, state: bytes, replay: Sequence[ScheduledRequest]) -> Self:
        """This request in a state that it had later, or elsewhere; `replay` brings an empty cache there."""
        session = copy.copy(self)
        session._pending_plan = None
        vars(session).update(pickle.loads(state))
        session.replay = tuple(replay)
        return session

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
        whole = self.constraint is not None and self.constraint.is_complete_match(
            self.given.whole_text(answer, ends)
        )
        return "stop" if has_ended or whole else "length"

    def _is_decided(self, answer: Sequence[int]) -> bool:
        """Whether an answer has a token that ends it, and no mask before that."""
        end = self.given.end
        length = length_through_end(answer[end:], self.end_token_ids)
        return length is not None and self.vocabulary.mask_token_id not in answer[: end + length]
