"""What LoPA does at each step, with two branches: the anchor, and a fork that adds its best masked position."""

from __future__ import annotations

from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps, decided

PROMPT = BlockView(0, 2, "in_cache", 0, True)


def test_a_tie_goes_to_the_fork() -> None:
    settings = LopaSettings(
        max_new_tokens=2, num_branches=2, block_size=2, block_add_threshold=1.0, confidence_threshold=0.7
    )
    steps = [
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
    check_steps(LopaSession([1, 2], settings, VOCABULARY), steps)
