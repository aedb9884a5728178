"""What the bound on a log-likelihood evaluates at each step: branches are masks of the target, and nothing is filled.

The log-probabilities of these tables are the negative probabilities.
"""

from __future__ import annotations

from lopa_ray.decoding.likelihood_session import LikelihoodSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.scoring import ScoreTargets
from support.fake_model import VOCABULARY
from support.step_tables import M, Step, check_steps


def test_a_target_of_one_token_takes_one_forward() -> None:
    steps = [
        Step(
            Plan(1, 0, (1, 2, M), (Branch(((3, 3),), range(2, 3), scoring=ScoreTargets((5,))),), ()),
            [{2: (5, 0.5)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(-0.5,),  # the token's log-probability
                finish_reason="length",
            ),
        )
    ]
    check_steps(LikelihoodSession([1, 2], [5], VOCABULARY, mc_num=4), steps)


def test_two_draws_of_two_tokens_mask_one_of_them_and_both() -> None:
    """Numbers of masks lie evenly apart: one draw has one mask, the other two. With one, seed 0 masks the first.

    The factor of a draw is 1 ÷ 2 draws × 2 tokens ÷ its masks: 1 for one mask, 0.5 for two.
    """
    steps = [
        Step(
            Plan(
                step=1,
                start=0,
                canvas=(1, 2, M, M),
                branches=(
                    Branch(((4, 4),), range(2, 4), ((3, 6),), scoring=ScoreTargets((5, 6))),
                    Branch(((4, 4),), range(2, 4), scoring=ScoreTargets((5, 6))),
                ),
                cached=(),
            ),
            [{2: (5, 0.5)}, {2: (5, 1.0), 3: (6, 0.25)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(-0.5, -0.625),
                finish_reason="length",
            ),
        )
    ]
    check_steps(LikelihoodSession([1, 2], [5, 6], VOCABULARY, mc_num=2, masks_per_step=2), steps)
