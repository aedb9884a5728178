"""Settled choices: which positions they are, and that they are one more rule of every decoder that has the setting."""

from __future__ import annotations

import math

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.branching import PositionScore, scores_by_position
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.history import History
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from support.step_tables import report
from support.tiny_model import load_tiny_model


def scores(**by_position: tuple[int, float]) -> dict[int, PositionScore]:
    """p3=(5, 0.7): position 3 has token 5 with probability 0.7."""
    return scores_by_position(report(1, 0, {int(name[1:]): chosen for name, chosen in by_position.items()}))


def moved(probability: float, by: float) -> float:
    """The probability whose logit is larger by `by`."""
    logit = math.log(probability / (1 - probability)) + by
    return 1 / (1 + math.exp(-logit))


BEFORE = scores(p3=(5, 0.7), p4=(6, 0.7), p5=(7, 0.4), p6=(8, 0.9))


@pytest.mark.parametrize(
    ("now", "settled"),
    [
        (scores(p3=(5, 0.7)), [3]),
        (scores(p3=(5, moved(0.7, 0.04))), [3]),
        (scores(p3=(5, moved(0.7, -0.06))), []),  # it has moved too far
        (scores(p3=(6, 0.7)), []),  # another token
        (scores(p5=(7, 0.4)), []),  # not above 0.5
        (scores(p9=(5, 0.7)), []),  # a position that was not there
        (scores(p3=(5, 0.7), p4=(6, 0.6), p6=(8, 0.9)), [3, 6]),
    ],
)
def test_choices_that_stay_as_they_were_are_settled(
    now: dict[int, PositionScore], settled: list[int]
) -> None:
    history = History(D2FSettings(settled=0.05))
    assert history.settled(now, now) == []  # there is no report before
    assert history.after(BEFORE, filled=True).settled(now, now) == settled


@pytest.mark.parametrize(("settled", "filled"), [(0.05, False), (None, True)])
def test_nothing_is_settled_by_a_step_that_filled_nothing_or_without_the_setting(
    settled: float | None, filled: bool
) -> None:
    history = History(D2FSettings(settled=settled)).after(BEFORE, filled=filled)
    assert history.settled(BEFORE, BEFORE) == []


COMMON = {"max_new_tokens": 32, "block_size": 8, "confidence_threshold": 0.95, "stop_at_eos": False}

DECODERS: dict[str, GenerationSettings] = {
    "d2f": D2FSettings(**COMMON, settled=4.0),
    "lopa": LopaSettings(**COMMON, num_branches=3, settled=4.0),
    "fast_dllm": FastDllmSettings(**COMMON, settled=4.0),
    "block_diffusion": BlockDiffusionSettings(**COMMON, settled=4.0),
}


def decode(session: DecodeSession, *, restore_each_step: bool = False) -> list[list[int]]:
    """The canvas after every step."""
    runner = BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=64)
    canvases = []
    while not session.finished:
        plan = session.plan()
        scheduled = ScheduledRequest(1, 0, plan, tuple(range(len(plan.branches))))
        session.advance(
            [branch for _, branch in runner.execute(StepPlan(0, plan.step, (scheduled,))).reports]
        )
        canvases.append(list(session.generated))
        if restore_each_step:
            session = session.with_state(session.export_state(), ())
    return canvases


@pytest.mark.medium
@pytest.mark.parametrize("name", DECODERS)
def test_settled_choices_save_steps_and_are_part_of_the_state(name: str) -> None:
    settings = DECODERS[name]
    vocabulary = BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=64).vocabulary
    plain = settings.replace(settled=None)
    without, with_it = (decode(new_session([5, 6, 7], s, vocabulary)) for s in (plain, settings))
    assert len(with_it) < len(without)
    assert vocabulary.mask_token_id not in with_it[-1]
    again = decode(new_session([5, 6, 7], settings, vocabulary), restore_each_step=True)
    assert again == with_it
