"""What multi-block diffusion does at each step, with two blocks in flight: with edits and without."""

from __future__ import annotations

from lopa_ray.decoding.decoders.multi_block import MultiBlockSession, MultiBlockSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps, decided

BLOCK_DIFFUSION = SamplingParams(top_k_first=True)
TWO_IN_FLIGHT = MultiBlockSettings(
    max_new_tokens=5,
    block_size=2,
    max_blocks=2,
    block_add_threshold=0.5,
    decoded_token_threshold=1.0,
    confidence_threshold=0.7,
)
EDITED = MultiBlockSettings(
    max_new_tokens=4,
    block_size=2,
    max_blocks=2,
    block_add_threshold=0.5,
    confidence_threshold=0.7,
    editing_threshold=0.5,
    max_post_steps=2,
)
PROMPT = BlockView(0, 2, "in_cache", 0, True)


def test_a_block_begins_when_the_last_one_is_decided_far_enough_and_there_is_a_place() -> None:
    """The last token of the prompt is in the first block, which is half decided from the start."""
    steps = [
        # Two blocks begin. The second is not complete: without a sure position it would fill nothing.
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, 3, M, M, M),
                branches=(Branch(((2, 2), (4, 4), (6, 6)), range(2, 6), to_stage=(range(0, 2),)),),
                cached=(),
                stage_shared=True,
                sampling_params=BLOCK_DIFFUSION,
            ),
            [{3: (10, 0.25), 4: (11, 0.5), 5: (12, 0.75)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 10, 0.25), decided(5, 12, 0.75))),),
                canvas=(10, M, 12),
                blocks=(PROMPT, BlockView(2, 4, "to_cache", 0, True), BlockView(4, 6, "active", 1, False)),
            ),
        ),
        # The first block is staged while the second fills. It holds its place, so the third does not begin.
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(3, 10, M, 12),
                branches=(Branch(((4, 4), (6, 6)), range(4, 6), to_stage=(range(2, 4),)),),
                cached=(range(0, 2),),
                stage_shared=True,
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=True),
                sampling_params=BLOCK_DIFFUSION,
            ),
            [{4: (13, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 13, 0.5),)),),
                canvas=(10, 13, 12),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "to_cache", 0, True)),
            ),
        ),
        Step(
            Plan(
                step=3,
                start=4,
                canvas=(13, 12, M, M),
                branches=(Branch(((6, 6), (8, 8)), range(6, 8), to_stage=(range(4, 6),)),),
                cached=(range(0, 4),),
                stage_shared=True,
                commit=Commit(step=2, branch=0, spans=(range(2, 4),), shared=True),
                sampling_params=BLOCK_DIFFUSION,
            ),
            [{6: (14, 0.75), 7: (15, 0.75)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(6, 14, 0.75), decided(7, 15, 0.75))),),
                canvas=(10, 13, 12, 14, 15),
                blocks=(
                    PROMPT,
                    BlockView(2, 4, "in_cache", 0, True),
                    BlockView(4, 6, "in_cache", 0, True),
                    BlockView(6, 8, "to_cache", 0, True),
                ),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(MultiBlockSession([1, 2, 3], TWO_IN_FLIGHT, VOCABULARY), steps)


def test_both_blocks_are_filled_and_edited_until_they_stay() -> None:
    first, second = BlockView(2, 4, "active", 0, True), BlockView(4, 6, "active", 0, True)
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M, M),
                branches=(Branch(((2, 2), (4, 4)), range(2, 4), to_stage=(range(0, 2),)),),
                cached=(),
                stage_shared=True,
                sampling_params=BLOCK_DIFFUSION,
                scores_decided=True,
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
                editable=range(2, 4),
            ),
        ),
        # Both blocks fill, and from the same scores position 2 is edited. The confidence is that of the masks.
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M, M, M),
                branches=(Branch(((4, 4), (6, 6)), range(2, 6)),),
                cached=(range(0, 2),),
                stage_shared=True,
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=True),
                sampling_params=BLOCK_DIFFUSION,
                scores_decided=True,
            ),
            [{2: (12, 0.625), 3: (11, 0.75), 4: (20, 0.5), 5: (21, 0.25)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.75), decided(4, 20, 0.5), decided(2, 12, 0.625))),),
                canvas=(12, 11, 20, M),
                blocks=(PROMPT, first, BlockView(4, 6, "active", 1, True)),
                editable=range(2, 6),
            ),
        ),
        # A probability of the threshold is not above it: the first block stays, and is final.
        Step(
            Plan(
                step=3,
                start=2,
                canvas=(12, 11, 20, M),
                branches=(Branch(((4, 4), (6, 6)), range(2, 6)),),
                cached=(range(0, 2),),
                stage_shared=True,
                sampling_params=BLOCK_DIFFUSION,
                scores_decided=True,
            ),
            [{2: (12, 1.0), 3: (13, 0.5), 4: (20, 1.0), 5: (21, 0.25)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(5, 21, 0.25),)),),
                canvas=(12, 11, 20, 21),
                blocks=(PROMPT, BlockView(2, 4, "to_cache", 0, True), second),
                editable=range(4, 6),
            ),
        ),
        Step(
            Plan(
                step=4,
                start=2,
                canvas=(12, 11, 20, 21),
                branches=(Branch(((4, 4), (6, 6)), range(4, 6), to_stage=(range(2, 4),)),),
                cached=(range(0, 2),),
                stage_shared=True,
                sampling_params=BLOCK_DIFFUSION,
                scores_decided=True,
            ),
            [{4: (22, 0.75), 5: (21, 1.0)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 22, 0.75),)),),
                canvas=(12, 11, 22, 21),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), second),
                editable=range(4, 6),
            ),
        ),
        # The second block takes no more steps than it has positions and steps after its last mask.
        Step(
            Plan(
                step=5,
                start=4,
                canvas=(22, 21),
                branches=(Branch(((6, 6),), range(4, 6)),),
                cached=(range(0, 4),),
                stage_shared=True,
                commit=Commit(step=4, branch=0, spans=(range(2, 4),), shared=True),
                sampling_params=BLOCK_DIFFUSION,
                scores_decided=True,
            ),
            [{4: (20, 0.75), 5: (21, 1.0)}],
            StepOutcome(
                step=5,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 20, 0.75),)),),
                canvas=(12, 11, 20, 21),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "to_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(MultiBlockSession([1, 2], EDITED, VOCABULARY), steps)
