"""What LLaDA2.1's decoder does at each step: it fills and edits a block until that stays, then goes on to the next."""

from __future__ import annotations

from lopa_ray.decoding.decoders.editing import EditingSession, EditingSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps, decided

LLADA2 = SamplingParams(top_k_first=True)
BLOCKS_OF_2 = EditingSettings(
    max_new_tokens=4, block_size=2, confidence_threshold=0.75, editing_threshold=0.5, max_post_steps=2
)
PROMPT = BlockView(0, 2, "in_cache", 0, True)


def test_edits_follow_fills_until_nothing_changes_or_the_calls_are_used_up() -> None:
    """The first block converges in its second call without masks; the next is cut after two such calls."""
    first = BlockView(2, 4, "active", 0, True)
    steps = [
        # The prompt's block is staged by the call that begins the first block of the answer.
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M, M),
                branches=(Branch(((2, 2), (4, 4)), range(2, 4), to_stage=(range(0, 2),)),),
                cached=(),
                stage_shared=True,
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{2: (10, 0.875), 3: (11, 0.75)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.8125,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.875),)),),
                canvas=(10, M),
                blocks=(PROMPT, BlockView(2, 4, "active", 1, True)),
                editable=range(2, 4),
            ),
        ),
        # One call fills position 3 and edits position 2. The confidence is that of the masked position alone.
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(range(0, 2),),
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=True),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{2: (12, 0.625), 3: (11, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.5), decided(2, 12, 0.625))),),
                canvas=(12, 11),
                blocks=(PROMPT, first),
                editable=range(2, 4),
            ),
        ),
        # A probability of the threshold is not above it, and what stays is no edit: the block is final.
        Step(
            Plan(
                step=3,
                start=2,
                canvas=(12, 11),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(range(0, 2),),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{2: (13, 0.5), 3: (11, 1.0)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, ()),),
                canvas=(12, 11, M, M),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "active", 2, True)),
                editable=range(4, 6),
            ),
        ),
        # The final tokens of the first block are staged.
        Step(
            Plan(
                step=4,
                start=2,
                canvas=(12, 11, M, M),
                branches=(Branch(((4, 4), (6, 6)), range(4, 6), to_stage=(range(2, 4),)),),
                cached=(range(0, 2),),
                stage_shared=True,
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{4: (20, 1.0), 5: (21, 1.0)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 20, 1.0), decided(5, 21, 1.0))),),
                canvas=(12, 11, 20, 21),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "active", 0, True)),
                editable=range(4, 6),
            ),
        ),
        Step(
            Plan(
                step=5,
                start=4,
                canvas=(20, 21),
                branches=(Branch(((6, 6),), range(4, 6)),),
                cached=(range(0, 4),),
                commit=Commit(step=4, branch=0, spans=(range(2, 4),), shared=True),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{4: (22, 1.0), 5: (23, 1.0)}],
            StepOutcome(
                step=5,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 22, 1.0), decided(5, 23, 1.0))),),
                canvas=(12, 11, 22, 23),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "active", 0, True)),
                editable=range(4, 6),
            ),
        ),
        Step(
            Plan(
                step=6,
                start=4,
                canvas=(22, 23),
                branches=(Branch(((6, 6),), range(4, 6)),),
                cached=(range(0, 4),),
                sampling_params=LLADA2,
                scores_decided=True,
            ),
            [{4: (20, 1.0), 5: (23, 1.0)}],
            StepOutcome(
                step=6,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 20, 1.0),)),),
                canvas=(12, 11, 20, 23),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(EditingSession([1, 2], BLOCKS_OF_2, VOCABULARY), steps)
