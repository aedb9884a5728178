"""What LoPA does at each step, with two branches: the anchor, and a fork that adds its best masked position."""

from __future__ import annotations

from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from support.fake_model import VOCABULARY
from support.step_tables import EOS, M, Step, check_steps, decided

SETTINGS = LopaSettings(
    max_new_tokens=6, num_branches=2, block_size=2, block_add_threshold=1.0, confidence_threshold=0.7
)
PROMPT = BlockView(0, 2, "in_cache", 0, True)

STEPS = [
    # The prompt is fed and staged for the cache, and the first block behind it. There is no fork yet.
    Step(
        Plan(
            step=1,
            start=0,
            canvas=(1, 2, M, M),
            branches=(Branch(((4, 4),), range(2, 4), to_stage=(range(0, 2),)),),
            cached=(),
        ),
        [{2: (10, 0.75), 3: (11, 0.5)}],
        StepOutcome(
            step=1,
            winner=0,
            confidences=(0.625,),
            adopted=(),
            rule_steps=(RuleStep(0, (decided(2, 10, 0.75),)),),
            canvas=(10, M),
            blocks=(PROMPT, BlockView(2, 4, "active", 1, True)),
        ),
    ),
    # The fork adds 3, which completes its block, so it has the next block a step before the anchor, and wins.
    Step(
        Plan(
            step=2,
            start=2,
            canvas=(10, M, M, M),
            branches=(Branch(((6, 6),), range(2, 6), ((3, 11),)), Branch(((4, 4),), range(2, 4))),
            cached=(range(0, 2),),
            commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=False),
        ),
        [{4: (12, 0.75), 5: (13, 0.25)}, {3: (11, 0.25)}],
        StepOutcome(
            step=2,
            winner=0,
            confidences=(0.5, 0.25),
            adopted=(decided(3, 11, 0.5),),  # with the scores of the step that chose it
            rule_steps=(RuleStep(0, (decided(4, 12, 0.75),)),),
            canvas=(10, 11, 12, M),
            blocks=(PROMPT, BlockView(2, 4, "to_cache", 0, True), BlockView(4, 6, "active", 1, True)),
        ),
    ),
    # The decided block is fed once more and staged. The anchor wins; nothing passes the threshold, but its block is
    # complete, so the best position is filled.
    Step(
        Plan(
            step=3,
            start=2,
            canvas=(10, 11, 12, M, M, M),
            branches=(
                Branch(((8, 8),), range(4, 8), ((5, 13),), to_stage=(range(2, 4),)),
                Branch(((6, 6),), range(4, 6), to_stage=(range(2, 4),)),
            ),
            cached=(range(0, 2),),
        ),
        [{6: (14, 0.25), 7: (15, 0.25)}, {5: (13, 0.5)}],
        StepOutcome(
            step=3,
            winner=1,
            confidences=(0.25, 0.5),
            adopted=(),
            rule_steps=(RuleStep(1, (decided(5, 13, 0.5),)),),
            canvas=(10, 11, 12, 13),
            blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "to_cache", 0, True)),
        ),
    ),
    # The winner's K/V, those of branch 1, are committed. Nothing was left masked, so there is no fork. Every position
    # before the first EOS is decided: the request ends, with a mask behind it.
    Step(
        Plan(
            step=4,
            start=4,
            canvas=(12, 13, M, M),
            branches=(Branch(((8, 8),), range(6, 8), to_stage=(range(4, 6),)),),
            cached=(range(0, 4),),
            commit=Commit(step=3, branch=1, spans=(range(2, 4),), shared=False),
        ),
        [{6: (EOS, 0.75), 7: (15, 0.25)}],
        StepOutcome(
            step=4,
            winner=0,
            confidences=(0.5,),
            adopted=(),
            rule_steps=(RuleStep(0, (decided(6, EOS, 0.75),)),),
            canvas=(10, 11, 12, 13, EOS, M),
            blocks=(
                PROMPT,
                BlockView(2, 4, "in_cache", 0, True),
                BlockView(4, 6, "in_cache", 0, True),
                BlockView(6, 8, "active", 1, True),
            ),
            finish_reason="stop",
        ),
    ),
]


def test_lookahead_on_a_canvas_of_blocks() -> None:
    check_steps(LopaSession([1, 2], SETTINGS, VOCABULARY), STEPS)


def test_a_tie_goes_to_the_fork() -> None:
    session = LopaSession([1, 2], SETTINGS.replace(max_new_tokens=2), VOCABULARY)
    steps = [
        STEPS[0],
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M),
                branches=(Branch(((4, 4),), range(2, 4), ((3, 11),)), Branch(((4, 4),), range(2, 4))),
                cached=(range(0, 2),),
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=False),
            ),
            [{}, {3: (12, 1.0)}],  # a branch without masks has confidence 1
            StepOutcome(
                step=2,
                winner=0,
                confidences=(1.0, 1.0),
                adopted=(decided(3, 11, 0.5),),
                rule_steps=(RuleStep(0, ()),),
                canvas=(10, 11),
                blocks=(PROMPT, BlockView(2, 4, "to_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(session, steps)
