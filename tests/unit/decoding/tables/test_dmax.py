"""What DMax does at each step: it fills from the left, chooses anew what it has filled, and feeds it softly."""

from __future__ import annotations

from lopa_ray.decoding.decoders.dmax import DMaxSession, DMaxSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps, decided

LLADA2 = SamplingParams(top_k_first=True)
BLOCKS_OF_4 = DMaxSettings(max_new_tokens=10, block_size=4, confidence_threshold=0.5)
PROMPT = BlockView(0, 2, "in_cache", 0, True)
FIRST, SECOND = BlockView(2, 4, "in_cache", 0, True), BlockView(4, 8, "in_cache", 0, True)


def test_a_block_ends_with_its_calls_or_unchanged_or_sure() -> None:
    """Two tokens of the prompt are in the first block, which takes as many calls as it has positions. The second ends
    with a call that changes nothing, the third with one that is sure of all."""
    steps = [
        # A probability of the threshold passes.
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M, M),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{2: (10, 0.5), 3: (11, 0.25)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.375,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.5),)),),
                canvas=(10, M),
                blocks=(PROMPT, BlockView(2, 4, "active", 1, True)),
                editable=range(2, 4),
            ),
        ),
        # Where no mask passes, the leftmost is filled.
        Step(
            Plan(
                step=2,
                start=0,
                canvas=(1, 2, 10, M),
                input_weights=(1.0, 1.0, 0.5, 1.0),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{2: (12, 0.25), 3: (11, 0.375)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.375,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.375), decided(2, 12, 0.25))),),
                canvas=(12, 11),
                blocks=(PROMPT, BlockView(2, 4, "active", 0, True)),
                editable=range(2, 4),
            ),
        ),
        # A token that stays gets a new weight.
        Step(
            Plan(
                step=3,
                start=0,
                canvas=(1, 2, 12, 11),
                input_weights=(1.0, 1.0, 0.25, 0.375),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{2: (12, 1.0), 3: (13, 0.875)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 13, 0.875),)),),
                canvas=(12, 13),
                blocks=(PROMPT, BlockView(2, 4, "active", 0, True)),
                editable=range(2, 4),
            ),
        ),
        # The fourth call ends a block of 4, although it changes a token.
        Step(
            Plan(
                step=4,
                start=0,
                canvas=(1, 2, 12, 13),
                input_weights=(1.0, 1.0, 1.0, 0.875),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{2: (12, 0.75), 3: (14, 0.5)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 14, 0.5),)),),
                canvas=(12, 14, M, M, M, M),
                blocks=(PROMPT, FIRST, BlockView(4, 8, "active", 4, True)),
                editable=range(4, 8),
            ),
        ),
        # The finished block is fed as it is, and staged. No mask behind one that fails is filled.
        Step(
            Plan(
                step=5,
                start=0,
                canvas=(1, 2, 12, 14, M, M, M, M),
                branches=(Branch(((4, 4), (8, 8)), range(4, 8), to_stage=(range(4),)),),
                cached=(),
                stage_shared=True,
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{4: (20, 1.0), 5: (21, 0.25), 6: (22, 1.0), 7: (23, 0.75)}],
            StepOutcome(
                step=5,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 20, 1.0),)),),
                canvas=(12, 14, 20, M, M, M),
                blocks=(PROMPT, FIRST, BlockView(4, 8, "active", 3, True)),
                editable=range(4, 8),
            ),
        ),
        Step(
            Plan(
                step=6,
                start=4,
                canvas=(20, M, M, M),
                input_weights=(1.0, 1.0, 1.0, 1.0),
                branches=(Branch(((8, 8),), range(4, 8)),),
                cached=(range(4),),
                commit=Commit(step=5, branch=0, spans=(range(4),), shared=True),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{4: (20, 0.75), 5: (21, 0.75), 6: (22, 0.75), 7: (23, 0.75)}],
            StepOutcome(
                step=6,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(5, 21, 0.75), decided(6, 22, 0.75), decided(7, 23, 0.75))),),
                canvas=(12, 14, 20, 21, 22, 23),
                blocks=(PROMPT, FIRST, BlockView(4, 8, "active", 0, True)),
                editable=range(4, 8),
            ),
        ),
        # A call that changes nothing ends the block, however unsure it is.
        Step(
            Plan(
                step=7,
                start=4,
                canvas=(20, 21, 22, 23),
                input_weights=(0.75, 0.75, 0.75, 0.75),
                branches=(Branch(((8, 8),), range(4, 8)),),
                cached=(range(4),),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{4: (20, 0.5), 5: (21, 0.5), 6: (22, 0.5), 7: (23, 0.5)}],
            StepOutcome(
                step=7,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, ()),),
                canvas=(12, 14, 20, 21, 22, 23, M, M, M, M),
                blocks=(PROMPT, FIRST, SECOND, BlockView(8, 12, "active", 4, True)),
                editable=range(8, 12),
            ),
        ),
        # A call that is sure of all ends the block, although no call has seen its tokens.
        Step(
            Plan(
                step=8,
                start=4,
                canvas=(20, 21, 22, 23, M, M, M, M),
                branches=(Branch(((8, 8), (12, 12)), range(8, 12), to_stage=(range(4, 8),)),),
                cached=(range(4),),
                stage_shared=True,
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{8: (30, 1.0), 9: (31, 1.0), 10: (32, 1.0), 11: (33, 0.9375)}],
            StepOutcome(
                step=8,
                winner=0,
                confidences=(0.984375,),
                adopted=(),
                rule_steps=(
                    RuleStep(
                        0,
                        (
                            decided(8, 30, 1.0),
                            decided(9, 31, 1.0),
                            decided(10, 32, 1.0),
                            decided(11, 33, 0.9375),
                        ),
                    ),
                ),
                canvas=(12, 14, 20, 21, 22, 23, 30, 31, 32, 33),
                blocks=(PROMPT, FIRST, SECOND, BlockView(8, 12, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(DMaxSession([1, 2], BLOCKS_OF_4, VOCABULARY), steps)
