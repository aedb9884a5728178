"""RequestSession: a request as schedulers and engines see it, whatever its steps are for.

It decides everything about one request (branches, fills, what is cached, who won) from the reports it is handed. It
touches neither torch, nor Ray, nor a clock, so the same session runs in one process, on any number of workers, and
through their failures:

    while not session.finished:
        plan = session.plan()
        outcome = session.advance(reports_for(plan))
"""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from lopa_ray.decoding.request_checks import check_prompt
from lopa_ray.errors import ProtocolError, ScoreError, StepLimitError
from lopa_ray.protocol.forward_costs import StepLoad
from lopa_ray.protocol.outcome import FinishReason, StepOutcome
from lopa_ray.protocol.plan import Plan, ScheduledRequest
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

COUNTED = ("steps", "forwards", "finish_reason", "rule_steps")  # public attributes that steps change

PLANNED = ("_pending_plan", "_branches", "_promise")
"""Attributes that `plan` changes. They belong to the coming step alone, and are made anew when that is planned
again."""


class RequestSession(ABC):
    """One request, step by step. Steps change only attributes with an underscore and the attributes in `COUNTED`."""

    keeps_prompt_masks: ClassVar[bool] = False  # whether masks in a prompt are tokens like others

    def __init__(self, prompt: Sequence[int], vocabulary: Vocabulary, max_new_tokens: int) -> None:
        """A request without `max_new_tokens` is finished before its first step. Raises PromptError for an empty prompt,
        ids outside the vocabulary, or mask tokens in the prompt: most published decoders fill these or hang on them."""
        check_prompt(prompt, vocabulary, self.keeps_prompt_masks)
        self.prompt = list(prompt)
        self.vocabulary = vocabulary
        self.max_len = len(prompt) + max_new_tokens  # positions that prompt and answer may take up at most
        self.replay: tuple[ScheduledRequest, ...] = ()
        """Steps that a cache without K/V of the request must carry out before the next step; see `Journal`."""
        self.client = ""  # whose request it is; see `lopa_ray.scheduling.fair_queue`
        self.priority = 0  # requests with the lowest value get slots first, among one client's
        self.load: StepLoad | None = None  # of the coming step; None: it is not known
        self.steps = 0
        self.forwards = 0
        self.finish_reason: FinishReason | None = None if max_new_tokens else "length"
        self._pending_plan: Plan | None = None
        self._weight_version = 0

    # What a kind of requests provides

    @abstractmethod
    def _plan(self, num_branches: int) -> Plan:
        """The next step's plan, of at most `num_branches` branches."""

    @abstractmethod
    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        """Take in one report per planned branch, in order; decide and fill."""

    @abstractmethod
    def _finish_reason(self) -> FinishReason | None:
        """Why no step follows; None: one does."""

    @property
    @abstractmethod
    def step_limit(self) -> int:
        """More steps than any correct run takes."""

    def branches_in_step(self, in_flight: int | None = None) -> int:
        """Maximum branches of the next step while so many requests are in flight. None: the request alone decides."""
        return 1

    @property
    def weighs_costs(self) -> bool:
        """Whether the number of branches follows `load`."""
        return False

    # What all share

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def plan(self, num_branches: int | None = None, load: StepLoad | None = None) -> Plan:
        """The current step's plan, of at most `num_branches` branches, in a step with this load. Until `advance` has
        taken its reports the plan stays the same, so a step that was lost with a worker can be run once more. Raises
        StepLimitError when more steps were used than any correct run can use (the published decoders loop for ever when
        the model keeps predicting the mask token), and ProtocolError when the request is finished."""
        if self.finished:
            raise ProtocolError("this request is finished; there is nothing left to plan")
        if self._pending_plan is None:
            if self.steps >= self.step_limit:
                raise StepLimitError(
                    f"{self.steps} steps did not finish {self.max_len - len(self.prompt)} tokens, though each step "
                    "decides at least one; this is a bug or a broken model, please report it"
                )
            self.load = load
            self._pending_plan = self._plan(num_branches or self.branches_in_step())
        return self._pending_plan

    def advance(self, reports: Sequence[BranchReport]) -> StepOutcome:
        """Take in the reports of the pending plan, in any order, one per branch. Changes nothing and raises
        ProtocolError if a report belongs to another step, if branches are missing or doubled, or if nothing was
        planned; and ScoreError if a score is NaN."""
        plan = self._pending_plan
        if plan is None:
            raise ProtocolError("no step is planned; call plan() first")
        ordered = sorted(reports, key=lambda report: report.branch)
        for report in ordered:
            if report.step != plan.step:
                raise ProtocolError(f"got a report of step {report.step}; this is step {plan.step}")
        branches, last = [report.branch for report in ordered], len(plan.branches) - 1
        if branches != list(range(last + 1)):
            raise ProtocolError(f"got reports of branches {branches}; the plan has branches 0 to {last}")
        self._check_scores(plan, ordered)
        self._pending_plan = None
        self.steps += 1
        self.forwards += len(ordered)
        outcome = self._advance(plan, ordered)
        self.finish_reason = self._finish_reason()
        return replace(outcome, finish_reason=self.finish_reason, weight_version=self._weight_version)

    def _check_scores(self, plan: Plan, reports: Sequence[BranchReport]) -> None:
        if np.isnan(np.concatenate([report.scores for report in reports])).any():
            raise ScoreError(
                f"the model's scores in step {plan.step} are NaN; its weights are broken, or its "
                "activations exceed the dtype: use bfloat16 or float32"
            )

    def use_weights(self, version: int) -> None:
        """The next steps are computed by weights of this version: earlier reports say nothing certain of theirs."""
        self._weight_version = version

    def export_state(self) -> bytes:
        """The state that steps have changed, for `with_state`; the same before and after the next step is planned."""
        changed = (name for name in vars(self) if name.startswith("_") or name in COUNTED)
        return pickle.dumps({name: getattr(self, name) for name in changed if name not in PLANNED})

    def with_state(self, state: bytes, replay: Sequence[ScheduledRequest]) -> Self:
        """This request in a state that it had later, or elsewhere; `replay` brings an empty cache there."""
        session = copy.copy(self)
        session._pending_plan = None
        vars(session).update(pickle.loads(state))
        session.replay = tuple(replay)
        return session
