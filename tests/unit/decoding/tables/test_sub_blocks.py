"""What block diffusion does at each step with Fast-dLLM v2's sub-blocks and their cache."""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSession, BlockDiffusionSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps, decided

SDAR = SamplingParams(top_k_first=True, confidence_temperature=1.0)
SUB_BLOCKS = BlockDiffusionSettings(
    max_new_tokens=4, block_size=4, sub_block_size=2, confidence_threshold=0.7
)
PROMPT_OF_4 = BlockView(0, 4, "in_cache", 0, True)


def test_sub_blocks_are_filled_from_the_left() -> None:
    """Logits are shifted, so the last row of the call that caches the prompt decides the block's first position."""
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, 3, 4, M),
                branches=(Branch(((4, 4), (5, 5)), range(4, 5), to_stage=(range(0, 4),)),),
                cached=(),
                stage_shared=True,
                sampling_params=SDAR,
            ),
            [{4: (10, 0.25)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 10, 0.25),)),),
                canvas=(10, M, M, M),
                blocks=(PROMPT_OF_4, BlockView(4, 8, "active", 3, True)),
            ),
        ),
        # The whole block is fed, its first sub-block scored.
        Step(
            Plan(
                step=2,
                start=4,
                canvas=(10, M, M, M),
                branches=(Branch(((8, 8),), range(4, 6)),),
                cached=(range(0, 4),),
                commit=Commit(step=1, branch=0, spans=(range(0, 4),), shared=True),
                sampling_params=SDAR,
            ),
            [{5: (11, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(5, 11, 0.5),)),),
                canvas=(10, 11, M, M),
                blocks=(PROMPT_OF_4, BlockView(4, 8, "active", 2, True)),
            ),
        ),
        Step(
            Plan(
                step=3,
                start=4,
                canvas=(10, 11, M, M),
                branches=(Branch(((8, 8),), range(6, 8)),),
                cached=(range(0, 4),),
                sampling_params=SDAR,
            ),
            [{6: (12, 0.75), 7: (13, 0.75)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(6, 12, 0.75), decided(7, 13, 0.75))),),
                canvas=(10, 11, 12, 13),
                blocks=(PROMPT_OF_4, BlockView(4, 8, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    shifted = replace(VOCABULARY, shifted=True)
    check_steps(BlockDiffusionSession([1, 2, 3, 4], SUB_BLOCKS, shifted), steps)


def test_a_call_on_a_sub_block_reads_what_lies_around_it_from_the_cache() -> None:
    steps = [
        # Logits are not shifted here, so the call that caches the prompt decides nothing.
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, 3, 4),
                branches=(Branch(((4, 4),), range(0), to_stage=(range(0, 4),)),),
                cached=(),
                stage_shared=True,
                sampling_params=SDAR,
            ),
            [{}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, ()),),
                canvas=(M, M, M, M),
                blocks=(PROMPT_OF_4, BlockView(4, 8, "active", 4, True)),
            ),
        ),
        # A sub-block begins with a call on the whole block, which stages all of it, masks included.
        Step(
            Plan(
                step=2,
                start=4,
                canvas=(M, M, M, M),
                branches=(Branch(((8, 8),), range(4, 6), to_stage=(range(4, 8),)),),
                cached=(range(0, 4),),
                stage_shared=True,
                commit=Commit(step=1, branch=0, spans=(range(0, 4),), shared=True),
                sampling_params=SDAR,
            ),
            [{4: (10, 0.75), 5: (11, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.625,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 10, 0.75),)),),
                canvas=(10, M, M, M),
                blocks=(PROMPT_OF_4, BlockView(4, 8, "active", 3, True)),
            ),
        ),
        Step(
            Plan(
                step=3,
                start=4,
                canvas=(10, M),
                branches=(Branch(((6, 8),), range(4, 6)),),
                cached=(range(0, 4), range(6, 8)),
                commit=Commit(step=2, branch=0, spans=(range(4, 8),), shared=True),
                sampling_params=SDAR,
            ),
            [{5: (11, 0.5)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(5, 11, 0.5),)),),
                canvas=(10, 11, M, M),
                blocks=(PROMPT_OF_4, BlockView(4, 8, "active", 2, True)),
            ),
        ),
        Step(
            Plan(
                step=4,
                start=4,
                canvas=(10, 11, M, M),
                branches=(Branch(((8, 8),), range(6, 8), to_stage=(range(4, 8),)),),
                cached=(range(0, 4),),
                stage_shared=True,
                sampling_params=SDAR,
            ),
            [{6: (12, 0.75), 7: (13, 0.75)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(6, 12, 0.75), decided(7, 13, 0.75))),),
                canvas=(10, 11, 12, 13),
                blocks=(PROMPT_OF_4, BlockView(4, 8, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    settings = SUB_BLOCKS.replace(sub_block_cache=True)
    check_steps(BlockDiffusionSession([1, 2, 3, 4], settings, VOCABULARY), steps)
