"""What a decision evaluates at each step: the input alone, then every prefix of every question's values."""

from __future__ import annotations

import pytest

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.decision_session import DecisionSession
from lopa_ray.decoding.question_tokens import QuestionTokens
from lopa_ray.errors import PromptError
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.scoring import ScoreCandidates
from support.fake_model import VOCABULARY
from support.step_tables import EOS, M, Step, check_steps

FULL = PromptAttention()
YES_NO = QuestionTokens.of((5, 6), [[20], [21]], EOS)
TWO_LONG = QuestionTokens.of((7,), [[30], [30, 31]], EOS)


def outcome(step: int, logprobs: tuple[tuple[float, ...], ...], *, last: bool = False) -> StepOutcome:
    return StepOutcome(
        step=step,
        winner=0,
        confidences=tuple(map(max, logprobs)) or (0.0,),
        candidate_logprobs=logprobs,
        finish_reason="stop" if last else None,
    )


INPUT_STEP = Step(
    Plan(
        step=1,
        start=0,
        canvas=(1, 2, 3),
        branches=(Branch(((3, 3),), range(3, 3), to_stage=(range(3),)),),
        cached=(),
        stage_shared=True,
    ),
    [{}],
    outcome(1, ()),
)
COMMIT = Commit(1, 0, (range(3),), shared=True)
LANES = (
    Branch(((6, 6),), range(5, 6), ((3, 5), (4, 6)), scoring=ScoreCandidates((20, 21))),
    Branch(((6, 6),), range(4, 5), ((3, 7),), scoring=ScoreCandidates((30,))),
    Branch(((6, 6),), range(5, 6), ((3, 7), (4, 30)), scoring=ScoreCandidates((EOS, 31))),
)


def test_the_input_is_stored_and_every_prefix_is_a_lane() -> None:
    steps = [
        INPUT_STEP,
        Step(
            Plan(2, 3, (M, M, M), LANES, (range(3),), commit=COMMIT),
            [{5: (20, 0.5)}, {4: (30, 1.0)}, {5: (EOS, 0.25)}],
            outcome(2, ((-0.5, -0.5), (-1.0,), (-0.25, -0.25)), last=True),
        ),
    ]
    check_steps(DecisionSession([1, 2, 3], [YES_NO, TWO_LONG], VOCABULARY, attention=FULL), steps)


def test_lanes_beyond_the_bound_take_further_steps() -> None:
    steps = [
        INPUT_STEP,
        Step(
            Plan(2, 3, (M, M, M), LANES[:2], (range(3),), commit=COMMIT),
            [{5: (20, 0.5)}, {4: (30, 1.0)}],
            outcome(2, ((-0.5, -0.5), (-1.0,))),
        ),
        Step(
            Plan(3, 3, (M, M, M), LANES[2:], (range(3),)),
            [{5: (EOS, 0.25)}],
            outcome(3, ((-0.25, -0.25),), last=True),
        ),
    ]
    session = DecisionSession([1, 2, 3], [YES_NO, TWO_LONG], VOCABULARY, attention=FULL, max_step_rows=6)
    check_steps(session, steps)


def test_joint_lanes_have_the_input_in_them() -> None:
    branch = Branch(((6, 6),), range(5, 6), ((3, 5), (4, 6)), scoring=ScoreCandidates((20, 21)))
    steps = [
        Step(
            Plan(1, 0, (1, 2, 3, M, M, M), (branch,), ()),
            [{5: (20, 0.5)}],
            outcome(1, ((-0.5, -0.5),), last=True),
        )
    ]
    check_steps(DecisionSession([1, 2, 3], [YES_NO], VOCABULARY, attention=FULL, joint=True), steps)


def test_blocks_are_stored_whole_and_the_tail_is_in_each_lane() -> None:
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, 3, 4),
                branches=(Branch(((2, 2), (4, 4)), range(4, 4), to_stage=(range(4),)),),
                cached=(),
                stage_shared=True,
            ),
            [{}],
            outcome(1, ()),
        ),
        Step(
            Plan(
                step=2,
                start=4,
                canvas=(8, M, M, M),
                branches=(
                    Branch(
                        ((6, 6), (8, 8)), range(7, 8), ((5, 5), (6, 6)), scoring=ScoreCandidates((20, 21))
                    ),
                ),
                cached=(range(4),),
                commit=Commit(1, 0, (range(4),), shared=True),
            ),
            [{7: (20, 0.5)}],
            outcome(2, ((-0.5, -0.5),), last=True),
        ),
    ]
    attention = PromptAttention("blocks", 2)
    check_steps(DecisionSession([1, 2, 3, 4, 8], [YES_NO], VOCABULARY, attention=attention), steps)


def test_a_causal_input_is_followed_by_a_causal_question() -> None:
    session = DecisionSession([1, 2], [YES_NO], VOCABULARY, attention=PromptAttention("causal"))
    plan = session.plan()
    assert plan.branches[0].causal_stop == 2 and plan.branches[0].segments == ((2, 2),)
    assert session.attention.segments(2, 4, 5) == ((3, 3), (4, 4), (5, 5))
    assert PromptAttention("one_block").segments(2, 4, 5) == ((4, 4), (5, 5))


@pytest.mark.parametrize("token", [M, 50, -1])
def test_wrong_tokens_are_refused(token: int) -> None:
    wrong = (QuestionTokens((5, token), YES_NO.values), QuestionTokens((5,), ((token,),)))
    for question in wrong:
        with pytest.raises(PromptError, match="question 1"):
            DecisionSession([1], [YES_NO, question], VOCABULARY, attention=FULL)
    with pytest.raises(PromptError):
        DecisionSession([token], [YES_NO], VOCABULARY, attention=FULL)


def test_nothing_to_ask_is_refused() -> None:
    with pytest.raises(PromptError, match="questions"):
        DecisionSession([1], [], VOCABULARY, attention=FULL)
    with pytest.raises(PromptError, match="empty"):
        DecisionSession([1], [QuestionTokens((), YES_NO.values)], VOCABULARY, attention=FULL)
