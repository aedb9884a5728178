"""What DiffusionGemma's decoder does at each step: it encodes, accepts the most certain, redraws the rest, stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lopa_ray.decoding.decoders.renoising import RenoisingSession, RenoisingSettings
from lopa_ray.protocol.outcome import BlockView, Decision, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=50, mask_token_id=-1, eos_token_id=48, canvas_length=3)

SAMPLING = SamplingParams(ranking="neg_entropy", top_logprobs=1)


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


def encoder_plan(step: int, start: int, ids: Sequence[int]) -> Plan:
    stop = start + len(ids)
    return Plan(
        step=step,
        start=start,
        canvas=tuple(ids),
        branches=(Branch(((stop, stop),), range(stop, stop), to_stage=(range(start, stop),)),),
        cached=(range(start),) if start else (),
        stage_shared=True,
        sampling_params=SAMPLING,
        encodes=True,
    )


def decoder_plan(
    step: int, start: int, canvas: Sequence[int], call: int, temperature: float, commit: Commit, on: int = 0
) -> Plan:
    stop = start + 3
    branch = Branch(
        ((stop, stop),), range(start, stop), to_stage=(range(start, start),), draws=(call / 10,) * 3
    )
    return Plan(
        step=step,
        start=start,
        canvas=tuple(canvas),
        branches=(branch,),
        cached=(range(start),),
        commit=commit,
        sampling_params=replace(SAMPLING, temperature=temperature),
        scores_decided=True,
        conditioned_on=on,
    )


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


def test_two_canvases() -> None:
    """The first ends when its most likely tokens stay and it is certain, the second with the last call; it is cut to
    its first position."""
    decode = session(max_new_tokens=4, confidence_threshold=0.5)
    plan = decode.plan()
    assert plan == encoder_plan(1, 0, [7, 8])
    outcome = decode.advance([empty_report(plan)])
    encoded = Commit(1, 0, (range(2),), shared=True)
    assert outcome == StepOutcome(1, 0, (0.0,), (), (), canvas=(), blocks=(), commit=encoded)

    # Entropies 0.25 + 0.75 reach the bound of 1 before the third: it is accepted too.
    plan = decode.plan()
    assert plan == decoder_plan(2, 2, [0, 1, 2], 1, 4.0, encoded)
    outcome = decode.advance([report(plan, [20, 21, 22], [20, 31, 22], [0.75, 1.5, 0.25])])
    staged = Commit(2, 0, (range(2, 2),), shared=False)
    active = (BlockView(2, 5, "active", 0, False),)
    filled = (likely(2, 20), likely(3, 31, drawn=False), likely(4, 22))
    assert outcome == StepOutcome(
        2,
        0,
        (-2.5 / 3,),
        (),
        (RuleStep(0, filled),),
        canvas=(20, 31, 22),
        blocks=active,
        commit=staged,
        editable=range(2, 5),
    )

    # The first two are accepted: 0.5 before the second, 1.25 before the third. That one gets a new token.
    plan = decode.plan()
    assert plan == decoder_plan(3, 2, [20, 21, 22], 2, 3.0, staged, on=2)
    outcome = decode.advance([report(plan, [20, 31, 23], [20, 31, 23], [0.5, 0.75, 1.0])])
    assert outcome.filled == (likely(4, 23),)
    assert outcome.canvas == (20, 31, 23) and outcome.finish_reason is None

    # The same tokens, but not certain; then certain.
    plan = decode.plan()
    staged = Commit(3, 0, (range(2, 2),), shared=False)
    assert plan == decoder_plan(4, 2, [20, 31, 20], 3, 2.0, staged, on=3)
    outcome = decode.advance([report(plan, [20, 31, 23], [20, 31, 23], [0.25, 0.25, 0.25])])
    assert outcome.filled == () and outcome.commit is None and outcome.editable == range(0)
    assert outcome.canvas == (20, 31, 23)
    assert outcome.blocks == (BlockView(2, 5, "to_cache", 0, True),)

    plan = decode.plan()
    assert plan == encoder_plan(5, 2, [20, 31, 23])
    outcome = decode.advance([empty_report(plan)])
    assert outcome.blocks == (BlockView(2, 5, "in_cache", 0, True),)
    encoded = Commit(5, 0, (range(2, 5),), shared=True)

    # Each call finds another token likely, so the last one ends the canvas.
    commit, canvas = encoded, (0, 1, 2)
    for call, temperature in ((4, 4.0), (5, 3.0), (6, 2.0), (7, 1.0)):
        plan = decode.plan()
        step, on = plan.step, 0 if call == 4 else plan.step - 1
        assert plan == decoder_plan(step, 5, canvas, call, temperature, commit, on=on)
        outcome = decode.advance([report(plan, [30, 30, 30], [call, 30, 30], [9.0, 8.0, 7.0])])
        assert outcome.canvas == (20, 31, 23, call)
        # The most certain position is accepted, whatever its entropy.
        commit, canvas = Commit(step, 0, (range(5, 5),), shared=False), (10 * call, 10 * call, 30)
    assert outcome.finish_reason == "length" and decode.finished and decode.exhausted


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
