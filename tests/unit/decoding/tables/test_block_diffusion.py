"""What block diffusion does at each step: a block at a time, with exact K/V of all blocks before it."""

from __future__ import annotations

from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSession, BlockDiffusionSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps, decided

SDAR = SamplingParams(top_k_first=True, confidence_temperature=1.0)
BLOCKS_OF_2 = BlockDiffusionSettings(max_new_tokens=4, block_size=2, confidence_threshold=0.7)


def test_a_call_of_its_own_caches_each_block() -> None:
    """Blocks are counted from position 0, so the prompt's last token lies in the answer's first block."""
    prompt = BlockView(0, 3, "in_cache", 0, True)
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2),
                branches=(Branch(((2, 2),), range(0), to_stage=(range(0, 2),)),),
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
                canvas=(M,),
                blocks=(prompt, BlockView(3, 4, "active", 1, True)),
            ),
        ),
        # No probability is above the threshold: the call fills its share of the schedule, one position.
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(3, M),
                branches=(Branch(((4, 4),), range(3, 4)),),
                cached=(range(0, 2),),
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=True),
                sampling_params=SDAR,
            ),
            [{3: (10, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 10, 0.5),)),),
                canvas=(10, M, M),
                blocks=(prompt, BlockView(3, 4, "in_cache", 0, True), BlockView(4, 6, "active", 2, True)),
            ),
        ),
        Step(
            Plan(
                step=3,
                start=2,
                canvas=(3, 10),
                branches=(Branch(((4, 4),), range(0), to_stage=(range(2, 4),)),),
                cached=(range(0, 2),),
                stage_shared=True,
                sampling_params=SDAR,
            ),
            [{}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, ()),),
                canvas=(10, M, M),
                blocks=(prompt, BlockView(3, 4, "in_cache", 0, True), BlockView(4, 6, "active", 2, True)),
            ),
        ),
        Step(
            Plan(
                step=4,
                start=4,
                canvas=(M, M),
                branches=(Branch(((6, 6),), range(4, 6)),),
                cached=(range(0, 4),),
                commit=Commit(step=3, branch=0, spans=(range(2, 4),), shared=True),
                sampling_params=SDAR,
            ),
            [{4: (11, 0.75), 5: (12, 0.75)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 11, 0.75), decided(5, 12, 0.75))),),
                canvas=(10, 11, 12),
                blocks=(prompt, BlockView(3, 4, "in_cache", 0, True), BlockView(4, 6, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(
        BlockDiffusionSession([1, 2, 3], BLOCKS_OF_2.replace(max_new_tokens=3), VOCABULARY),
        steps,
    )


def test_a_fused_call_caches_a_block_and_fills_the_next() -> None:
    prompt = BlockView(0, 2, "in_cache", 0, True)
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M, M),
                branches=(Branch(((2, 2), (4, 4)), range(2, 4), to_stage=(range(0, 2),)),),
                cached=(),
                stage_shared=True,
                sampling_params=SDAR,
            ),
            [{2: (10, 0.75), 3: (11, 0.5)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.625,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.75),)),),
                canvas=(10, M),
                blocks=(prompt, BlockView(2, 4, "active", 1, True)),
            ),
        ),
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(range(0, 2),),
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=True),
                sampling_params=SDAR,
            ),
            [{3: (11, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.5),)),),
                canvas=(10, 11, M, M),
                blocks=(prompt, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "active", 2, True)),
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
                sampling_params=SDAR,
            ),
            [{4: (12, 0.75), 5: (13, 0.75)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 12, 0.75), decided(5, 13, 0.75))),),
                canvas=(10, 11, 12, 13),
                blocks=(prompt, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(BlockDiffusionSession([1, 2], BLOCKS_OF_2.replace(fuse_store=True), VOCABULARY), steps)
