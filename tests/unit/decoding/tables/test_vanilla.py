"""What the samplers of LLaDA and Dream do at each step: every call feeds all, a schedule says how many it fills."""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.decoding.decoders.vanilla import VanillaSession, VanillaSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import EOS, M, Step, check_steps, decided

LLADA = SamplingParams(precision="float64", confidence_temperature=1.0)
DREAM = SamplingParams(precision="float16")
PROMPT = BlockView(0, 2, "in_cache", 0, True)


def test_llada_spreads_four_positions_over_three_calls_as_two_one_one() -> None:
    settings = VanillaSettings(max_new_tokens=4, steps=3)
    steps = [
        Step(
            Plan(1, 0, (1, 2, M, M, M, M), (Branch(((6, 6),), range(2, 6)),), (), sampling_params=LLADA),
            # The two best ranked; of equal ones the first.
            [{2: (10, 0.25), 3: (11, 0.75), 4: (12, 0.5), 5: (13, 0.5)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.5,),  # the mean score of the branch's masked positions
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.75), decided(4, 12, 0.5))),),
                canvas=(M, 11, 12, M),
                blocks=(PROMPT, BlockView(2, 6, "active", 2, True)),
            ),
        ),
        Step(
            Plan(2, 0, (1, 2, M, 11, 12, M), (Branch(((6, 6),), range(2, 6)),), (), sampling_params=LLADA),
            [{2: (10, 0.5), 5: (13, 0.25)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.375,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.5),)),),
                canvas=(10, 11, 12, M),
                blocks=(PROMPT, BlockView(2, 6, "active", 1, True)),
            ),
        ),
        Step(
            Plan(3, 0, (1, 2, 10, 11, 12, M), (Branch(((6, 6),), range(2, 6)),), (), sampling_params=LLADA),
            [{5: (EOS, 0.25)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(5, EOS, 0.25),)),),
                canvas=(10, 11, 12, EOS),
                blocks=(PROMPT, BlockView(2, 6, "in_cache", 0, True)),
                finish_reason="stop",
            ),
        ),
    ]
    check_steps(VanillaSession([1, 2], settings, VOCABULARY), steps)


def test_dream_cuts_its_shares_to_whole_positions_in_each_block() -> None:
    """Two calls per block: 0.4995 of its masks, which of two masks is none, then all."""
    settings = VanillaSettings(max_new_tokens=6, block_size=4, steps=4)
    steps = [
        Step(
            Plan(
                1, 0, (1, 2, M, M, M, M, M, M), (Branch(((8, 8),), range(2, 6)),), (), sampling_params=DREAM
            ),
            [{2: (10, 0.25), 3: (11, 0.5), 4: (12, 0.75), 5: (13, 0.5)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(4, 12, 0.75),)),),
                canvas=(M, M, 12, M, M, M),
                blocks=(PROMPT, BlockView(2, 6, "active", 3, True), BlockView(6, 8, "active", 2, False)),
            ),
        ),
        Step(
            Plan(
                2, 0, (1, 2, M, M, 12, M, M, M), (Branch(((8, 8),), range(2, 6)),), (), sampling_params=DREAM
            ),
            [{2: (10, 0.25), 3: (11, 0.25), 5: (13, 0.25)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.25,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.25), decided(3, 11, 0.25), decided(5, 13, 0.25))),),
                canvas=(10, 11, 12, 13, M, M),
                blocks=(PROMPT, BlockView(2, 6, "in_cache", 0, True), BlockView(6, 8, "active", 2, True)),
            ),
        ),
        Step(
            Plan(
                3,
                0,
                (1, 2, 10, 11, 12, 13, M, M),
                (Branch(((8, 8),), range(6, 8)),),
                (),
                sampling_params=DREAM,
            ),
            [{6: (14, 0.75), 7: (15, 0.25)}],
            StepOutcome(
                step=3,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, ()),),
                canvas=(10, 11, 12, 13, M, M),
                blocks=(PROMPT, BlockView(2, 6, "in_cache", 0, True), BlockView(6, 8, "active", 2, True)),
            ),
        ),
        Step(
            Plan(
                4,
                0,
                (1, 2, 10, 11, 12, 13, M, M),
                (Branch(((8, 8),), range(6, 8)),),
                (),
                sampling_params=DREAM,
            ),
            [{6: (14, 0.75), 7: (15, 0.75)}],
            StepOutcome(
                step=4,
                winner=0,
                confidences=(0.75,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(6, 14, 0.75), decided(7, 15, 0.75))),),
                canvas=(10, 11, 12, 13, 14, 15),
                blocks=(PROMPT, BlockView(2, 6, "in_cache", 0, True), BlockView(6, 8, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(VanillaSession([1, 2], settings, replace(VOCABULARY, shifted=True)), steps)


def test_a_fork_adds_the_best_position_that_the_call_left_masked() -> None:
    settings = VanillaSettings(max_new_tokens=3, num_branches=2)
    steps = [
        Step(
            Plan(1, 0, (1, 2, M, M, M), (Branch(((5, 5),), range(2, 5)),), (), sampling_params=LLADA),
            [{2: (10, 0.25), 3: (11, 0.75), 4: (12, 0.5)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.75),)),),
                canvas=(M, 11, M),
                blocks=(PROMPT, BlockView(2, 5, "active", 2, True)),
            ),
        ),
        Step(
            Plan(
                2,
                0,
                (1, 2, M, 11, M),
                (Branch(((5, 5),), range(2, 5), ((4, 12),)), Branch(((5, 5),), range(2, 5))),
                (),
                sampling_params=LLADA,
            ),
            [{2: (10, 0.75)}, {2: (10, 0.5), 4: (12, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.75, 0.5),
                adopted=(decided(4, 12, 0.5),),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.75),)),),
                canvas=(10, 11, 12),
                blocks=(PROMPT, BlockView(2, 5, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(VanillaSession([1, 2], settings, VOCABULARY), steps)
