"""What Nemotron's decoder does at each step: a causal call stores and seeds, calls without a mask fill the block."""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.decoding.decoders.nemotron import NemotronSession, NemotronSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import EOS, M, Step, check_steps, decided

PROMPT = BlockView(0, 2, "in_cache", 0, True)


def test_two_blocks_behind_a_causal_context() -> None:
    """Blocks are counted from the end of the prompt; the second is cut, and not stored."""
    settings = NemotronSettings(max_new_tokens=5, block_size=3, confidence_threshold=0.5)
    steps = [
        # The seed's row is fed for its score alone: in the causal call the row in front of it decides.
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M),
                branches=(Branch(((2, 2), (3, 3)), range(2, 3), to_stage=(range(2),), causal_stop=3),),
                cached=(),
                stage_shared=True,
                sampling_params=SamplingParams(),
            ),
            [{2: (10, 0.25)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.25),)),),
                canvas=(10, M, M),
                blocks=(PROMPT, BlockView(2, 5, "active", 2, True)),
            ),
        ),
        # A probability of the threshold passes.
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M, M),
                branches=(Branch(((5, 5),), range(2, 5)),),
                cached=(range(2),),
                commit=Commit(1, 0, (range(2),), True),
                sampling_params=SamplingParams(),
            ),
            [{3: (11, 0.5), 4: (12, 0.25)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.375,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.5),)),),
                canvas=(10, 11, M),
                blocks=(PROMPT, BlockView(2, 5, "active", 1, True)),
            ),
        ),
        # Where none passes, the most probable one is filled.
        Step(
            Plan(
                step=3,
                start=2,
                canvas=(10, 11, M),
                branches=(Branch(((5, 5),), range(2, 5)),),
                cached=(range(2),),
                sampling_params=SamplingParams(),
            ),
            [{4: (13, 0.25)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 13, 0.25),)),),
                canvas=(10, 11, 13, M, M),
                blocks=(PROMPT, BlockView(2, 5, "in_cache", 0, True), BlockView(5, 7, "active", 2, True)),
            ),
        ),
        # The finished block is stored causally, and its last row decides the next seed.
        Step(
            Plan(
                step=4,
                start=2,
                canvas=(10, 11, 13, M),
                branches=(Branch(((5, 5), (6, 6)), range(5, 6), to_stage=(range(2, 5),), causal_stop=6),),
                cached=(range(2),),
                stage_shared=True,
                sampling_params=SamplingParams(),
            ),
            [{5: (14, 0.5)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(5, 14, 0.5),)),),
                canvas=(10, 11, 13, 14, M),
                blocks=(PROMPT, BlockView(2, 5, "in_cache", 0, True), BlockView(5, 7, "active", 1, True)),
            ),
        ),
        Step(
            Plan(
                step=5,
                start=5,
                canvas=(14, M),
                branches=(Branch(((7, 7),), range(5, 7)),),
                cached=(range(5),),
                commit=Commit(4, 0, (range(2, 5),), True),
                sampling_params=SamplingParams(),
            ),
            [{6: (15, 0.25)}],
            StepOutcome(
                step=5,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(6, 15, 0.25),)),),
                canvas=(10, 11, 13, 14, 15),
                blocks=(PROMPT, BlockView(2, 5, "in_cache", 0, True), BlockView(5, 7, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(NemotronSession([1, 2], settings, VOCABULARY), steps)


def test_a_budget_puts_the_end_of_thinking_in_and_a_full_context_has_no_seed() -> None:
    """The budget of one token ends in the only block, which gets the token there by the storing call."""
    settings = NemotronSettings(
        max_new_tokens=2,
        block_size=2,
        confidence_threshold=None,
        causal_context=False,
        max_thinking_tokens=1,
        end_think_token_id=30,
    )
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2),
                branches=(Branch(((2, 2),), range(2, 2), to_stage=(range(2),)),),
                cached=(),
                stage_shared=True,
                sampling_params=SamplingParams(),
            ),
            [{}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(1.0,),
                adopted=(),
                rule_steps=(RuleStep(0, (replace(decided(3, 30, 1.0), logprob=0.0),)),),
                canvas=(M, 30),
                blocks=(PROMPT, BlockView(2, 4, "active", 1, True)),
            ),
        ),
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(M, 30),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(range(2),),
                commit=Commit(1, 0, (range(2),), True),
                sampling_params=SamplingParams(),
            ),
            [{2: (EOS, 0.25)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, EOS, 0.25),)),),
                canvas=(EOS, 30),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True)),
                finish_reason="stop",
            ),
        ),
    ]
    check_steps(NemotronSession([1, 2], settings, VOCABULARY), steps)
