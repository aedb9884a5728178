"""What D2F does at each step under block-causal attention: LoPA's canvas of blocks, and the anchor alone."""

from __future__ import annotations

from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSession
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps, decided

PROMPT = BlockView(0, 2, "in_cache", 0, True)


def test_a_block_is_added_when_the_last_one_is_half_decided() -> None:
    settings = D2FSettings(
        max_new_tokens=4,
        block_size=2,
        block_add_threshold=0.5,
        confidence_threshold=0.7,
        window_attention="block_causal",
    )
    steps = [
        # A segment per block: a block's rows attend to it and to all before.
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M, M),
                branches=(Branch(((2, 2), (4, 4)), range(2, 4), to_stage=(range(0, 2),)),),
                cached=(),
                stage_shared=True,
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
        # Nothing passes the threshold: a complete block fills its best position, the new one is not complete.
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M, M, M),
                branches=(Branch(((4, 4), (6, 6)), range(2, 6)),),
                cached=(range(0, 2),),
                stage_shared=True,
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=True),
            ),
            [{3: (11, 0.5), 4: (12, 0.5), 5: (13, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.5),)),),
                canvas=(10, 11, M, M),
                blocks=(PROMPT, BlockView(2, 4, "to_cache", 0, True), BlockView(4, 6, "active", 2, False)),
            ),
        ),
        Step(
            Plan(
                step=3,
                start=2,
                canvas=(10, 11, M, M),
                branches=(Branch(((4, 4), (6, 6)), range(4, 6), to_stage=(range(2, 4),)),),
                cached=(range(0, 2),),
                stage_shared=True,
            ),
            [{4: (12, 0.75), 5: (13, 0.75)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 12, 0.75), decided(5, 13, 0.75))),),
                canvas=(10, 11, 12, 13),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "to_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(LopaSession([1, 2], settings, VOCABULARY), steps)
