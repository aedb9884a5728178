"""What DiffusionGemma's decoder does at each step: it encodes, accepts the most certain, redraws the rest, stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lopa_ray.decoding.decoders.renoising import RenoisingSession, RenoisingSettings
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=50, mask_token_id=-1, eos_token_id=48, canvas_length=3)


class CountedNoise:
    """First tokens are 0 and the next ones, draws are a tenth of the call, new tokens ten times the call."""

    def first_canvas(self, positions: range) -> tuple[int, ...]:
        return tuple(range(len(positions)))

    def draws(self, call: int, positions: range) -> tuple[float, ...]:
        return (call / 10,) * len(positions)

    def new_tokens(self, call: int, positions: range) -> tuple[int, ...]:
        return (10 * call,) * len(positions)


def session(**settings: object) -> RenoisingSession:
    values = {"t_min": 0.0, "t_max": 4.0, "max_denoising_steps": 4, "entropy_bound": 1.0, **settings}
    made = RenoisingSession([7, 8], RenoisingSettings(**values), VOCABULARY)
    made.noise = CountedNoise()
    return made


def report(
    plan: Plan, drawn: Sequence[int], likely: Sequence[int], entropies: Sequence[float]
) -> BranchReport:
    """Drawn tokens have probability 0.5, the most likely ones a log-probability of -1."""
    count = len(drawn)
    return BranchReport(
        step=plan.step,
        branch=0,
        positions=np.arange(plan.start, plan.start + count, dtype=np.int32),
        tokens=np.array(drawn, np.int32),
        probabilities=np.full(count, 0.5),
        logprobs=np.full(count, -2.0, np.float32),
        scores=-np.array(entropies, np.float64),
        top_tokens=np.array(likely, np.int32).reshape(count, 1),
        top_logprobs=np.full((count, 1), -1.0, np.float32),
    )


def empty_report(plan: Plan) -> BranchReport:
    none = report(plan, [], [], [])
    return replace(none, top_tokens=none.top_tokens.reshape(0, 1))


def likely(position: int, token: int, *, drawn: bool = True) -> Decision:
    return Decision(position, token, 0.5 if drawn else float(np.exp(-1.0)), -1.0, ())


def test_an_end_token_ends_the_answer_when_its_canvas_is_final() -> None:
    decode = session(max_new_tokens=9, max_denoising_steps=2)
    decode.advance([empty_report(decode.plan())])
    outcome = decode.advance([report(decode.plan(), [1, 1, 1], [5, 48, 6], [9.0] * 3)])
    assert outcome.finish_reason is None
    outcome = decode.advance([report(decode.plan(), [1, 1, 1], [5, 48, 6], [9.0] * 3)])
    assert outcome.finish_reason == "stop" and outcome.canvas == (5, 48, 6)


def test_without_a_stability_threshold_a_certain_call_is_enough() -> None:
    decode = session(max_new_tokens=3, stability_threshold=0, confidence_threshold=1.0)
    decode.advance([empty_report(decode.plan())])
    assert decode.advance([report(decode.plan(), [1, 2, 3], [1, 2, 3], [0.5] * 3)]).finish_reason == "length"


def test_two_stable_calls_are_those_before_this_one() -> None:
    decode = session(max_new_tokens=3, stability_threshold=2, confidence_threshold=1.0, max_denoising_steps=9)
    decode.advance([empty_report(decode.plan())])
    answers = ([1, 2, 3], [1, 2, 4], [1, 2, 4], [1, 2, 4])
    reasons = [
        decode.advance([report(decode.plan(), tokens, tokens, [0.5] * 3)]).finish_reason for tokens in answers
    ]
    assert reasons == [None, None, None, "length"]


def test_a_long_prompt_is_cut_into_runs_that_prompts_share() -> None:
    decode = RenoisingSession([1] * 600, RenoisingSettings(max_new_tokens=3), VOCABULARY)
    assert decode.plan().branches[0].segments == ((256, 256), (512, 512), (600, 600))
