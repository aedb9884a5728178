"""DecisionSession: the values of many questions about one input, as a request like any other.

The first step computes the input alone, and stores its K/V. In the steps after it each lane is a question after the
input, with a prefix of a value in its slot, and reports the log-probabilities of the tokens that may follow there (see
`QuestionTokens`). Lanes read the input's K/V and nothing of each other, so a lane's report depends on the input and its
own question alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.question_tokens import QuestionTokens
from lopa_ray.decoding.request_checks import check_known
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import PromptError
from lopa_ray.protocol.outcome import FinishReason, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.scoring import ScoreCandidates
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

MAX_STEP_ROWS = 2**15
"""Maximum number of rows of a step, unless a single lane has more. It bounds the size of a plan; the scheduler divides
a step that is too large for its workers."""


class DecisionSession(RequestSession):
    """One input's questions, as lanes. `StepOutcome.candidate_logprobs` of all steps belong to `lanes`, in order."""

    def __init__(
        self,
        prompt: Sequence[int],
        questions: Sequence[QuestionTokens],
        vocabulary: Vocabulary,
        *,
        attention: PromptAttention,
        joint: bool = False,
        max_step_rows: int = MAX_STEP_ROWS,
    ) -> None:
        """`prompt` is the input. With `joint` each lane computes it anew, so that it sees the question too, as far as
        `attention` allows. Raises PromptError as `RequestSession` does, for no questions, and for an empty question or
        one with an id outside the vocabulary or the mask token's."""
        if not questions:
            raise PromptError("got no questions; add one")
        for index, question in enumerate(questions):
            if not question.asked:
                raise PromptError(f"question {index} is empty; give at least one token")
            check_known(question.asked, vocabulary, f"question {index}")
            for value in question.values:
                check_known(value, vocabulary, f"question {index}")
        longest = max(question.length for question in questions)
        super().__init__(prompt, vocabulary, longest)
        self.questions = tuple(questions)
        self.lanes = tuple(
            (question, prefix, candidates)
            for question in questions
            for prefix, candidates in question.candidates_by_prefix.items()
        )
        """Forwards: a question with a prefix of a value in its slot, and the tokens that follow it in a value."""
        self.attention, self.max_step_rows = attention, max_step_rows
        self.stored_end = 0 if joint else attention.stored_end(len(prompt))  # of the K/V that all lanes read
        self.longest_lane = max(self.stored_end, self.max_len - self.stored_end)  # rows of the longest branch
        self._evaluated = 0  # lanes that steps have evaluated
        self._is_stored = self.stored_end == 0  # or about to be by the coming step's commit
        self._commit: Commit | None = None

    @property
    def step_limit(self) -> int:
        """A step stores the input, each other step evaluates at least one lane."""
        return 1 + len(self.lanes)

    def _finish_reason(self) -> FinishReason | None:
        return "stop" if self._evaluated == len(self.lanes) else None

    def _plan(self, num_branches: int) -> Plan:
        """Lanes are all needed, so their number in a step follows from their rows."""
        return self._lane_plan() if self._is_stored else self._input_plan()

    def _input_plan(self) -> Plan:
        end, causal = self.stored_end, self.attention.kind == "causal"
        segments = ((end, end),) if causal else self.attention.segments(0, end, end)
        branch = Branch(segments, range(end, end), to_stage=(range(end),), causal_stop=end if causal else 0)
        canvas = tuple(self.prompt[:end])
        return Plan(self.steps + 1, 0, canvas, branches=(branch,), cached=(), stage_shared=True)

    def _lane_plan(self) -> Plan:
        start, rows, branches = self.stored_end, 0, list[Branch]()
        for question, prefix, candidates in self.lanes[self._evaluated :]:
            rows += len(self.prompt) - start + question.length
            if branches and rows > self.max_step_rows:
                break
            branches.append(self._branch(question, prefix, candidates))
        masks = max(branch.stop for branch in branches) - len(self.prompt)
        return Plan(
            step=self.steps + 1,
            start=start,
            canvas=(*self.prompt[start:], *[self.vocabulary.mask_token_id] * masks),
            branches=tuple(branches),
            cached=(range(start),) if start else (),
            commit=self._commit,
        )

    def _branch(self, question: QuestionTokens, prefix: Sequence[int], candidates: tuple[int, ...]) -> Branch:
        first = len(self.prompt)
        slot = first + len(question.asked)
        scored = slot + len(prefix)
        return Branch(
            segments=self.attention.segments(self.stored_end, slot, first + question.length),
            scored=range(scored, scored + 1),
            fills=tuple(enumerate((*question.asked, *prefix), first)),
            scoring=ScoreCandidates(candidates),
        )

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        logprobs: tuple[tuple[float, ...], ...] = ()
        if self._is_stored:
            logprobs = tuple(tuple(report.top_logprobs[0].tolist()) for report in reports)
            self._evaluated += len(reports)
        self._commit = None if self._is_stored else plan.commit_of(0)
        self._is_stored = True
        return StepOutcome(
            step=plan.step,
            winner=0,
            confidences=tuple(map(max, logprobs)) or (0.0,),
            candidate_logprobs=logprobs,
            commit=self._commit,
        )
