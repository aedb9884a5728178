"""What self-speculation does at each step: it drafts a block, and takes what one causal call agrees with."""

from __future__ import annotations

from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSession, SelfSpeculationSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import EOS, M, Scores, Step, check_steps, decided, report

PROMPT = BlockView(0, 2, "in_cache", 0, True)


def answered(session: SelfSpeculationSession, scores: Scores) -> StepOutcome:
    """The session's next step, with these scores."""
    return session.advance([report(session.plan().step, 0, scores)])


def test_drafts_are_taken_up_to_the_first_that_differs() -> None:
    """The first draft is right and the second wrong; of the next block an end token ends the answer."""
    settings = SelfSpeculationSettings(drafting="separate", max_new_tokens=6, block_size=3)
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M),
                branches=(Branch(((2, 2), (3, 3)), range(2, 3), to_stage=(range(2),), causal_stop=3),),
                cached=(),
                stage_shared=True,
                sampling_params=SamplingParams(),
                scores_decided=True,
            ),
            [{2: (10, 0.25)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.25),)),),
                canvas=(10,),
                blocks=(PROMPT, BlockView(2, 3, "in_cache", 0, True)),
            ),
        ),
        # Drafts go through the adapter, and into no canvas.
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M, M),
                branches=(Branch(((5, 5),), range(3, 5)),),
                cached=(range(2),),
                draft_adapter=True,
                commit=Commit(1, 0, (range(2),), True),
                sampling_params=SamplingParams(),
            ),
            [{3: (11, 0.5), 4: (12, 0.25)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.375,),
                adopted=(),
                rule_steps=(RuleStep(0, ()),),
                canvas=(10,),
                blocks=(PROMPT, BlockView(2, 3, "in_cache", 0, True)),
            ),
        ),
        # The token that differs is taken; what was said behind it is not, since it was said of another token.
        Step(
            Plan(
                step=3,
                start=2,
                canvas=(10, 11, 12, M),
                branches=(Branch(((5, 5), (6, 6)), range(3, 6), to_stage=(range(2, 5),), causal_stop=6),),
                cached=(range(2),),
                stage_shared=True,
                sampling_params=SamplingParams(),
                scores_decided=True,
            ),
            [{3: (11, 0.5), 4: (13, 0.25), 5: (14, 0.75)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.5), decided(4, 13, 0.25))),),
                canvas=(10, 11, 13),
                blocks=(PROMPT, BlockView(2, 5, "in_cache", 0, True)),
            ),
        ),
        # The next block begins with the last token: K/V of the wrong draft are computed again.
        Step(
            Plan(
                step=4,
                start=4,
                canvas=(13, M, M),
                branches=(Branch(((7, 7),), range(5, 7)),),
                cached=(range(4),),
                draft_adapter=True,
                commit=Commit(3, 0, (range(2, 5),), True),
                sampling_params=SamplingParams(),
            ),
            [{5: (EOS, 0.5), 6: (16, 0.5)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, ()),),
                canvas=(10, 11, 13),
                blocks=(PROMPT, BlockView(2, 5, "in_cache", 0, True)),
            ),
        ),
        Step(
            Plan(
                step=5,
                start=4,
                canvas=(13, EOS, 16, M),
                branches=(Branch(((7, 7), (8, 8)), range(5, 8), to_stage=(range(4, 7),), causal_stop=8),),
                cached=(range(4),),
                stage_shared=True,
                sampling_params=SamplingParams(),
                scores_decided=True,
            ),
            [{5: (EOS, 0.5), 6: (16, 0.5), 7: (17, 0.5)}],
            StepOutcome(
                step=5,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(5, EOS, 0.5),)),),
                canvas=(10, 11, 13, EOS),
                blocks=(PROMPT, BlockView(2, 6, "in_cache", 0, True)),
                finish_reason="stop",
            ),
        ),
    ]
    check_steps(SelfSpeculationSession([1, 2], settings, VOCABULARY), steps)


def test_a_threshold_drafts_in_several_calls_and_the_block_is_cut() -> None:
    settings = SelfSpeculationSettings(
        drafting="separate", max_new_tokens=4, block_size=8, confidence_threshold=0.5
    )
    session = SelfSpeculationSession([1], settings, VOCABULARY)
    calls = []
    for scores in ({1: (10, 0.25)}, {2: (11, 0.5), 3: (12, 0.25)}, {3: (13, 0.125)}):
        calls.append(session.plan())
        assert answered(session, scores).finish_reason is None
    assert [plan.draft_adapter for plan in calls] == [False, True, True]
    last = session.plan()
    # Three positions are left: two drafts, and the token behind them.
    assert (last.canvas, last.branches[0].scored) == ((10, 11, 13, M), range(2, 5))
    assert answered(session, {2: (11, 0.5), 3: (13, 0.5), 4: (14, 0.5)}).finish_reason == "length"
    assert session.generated == [10, 11, 13, 14]
