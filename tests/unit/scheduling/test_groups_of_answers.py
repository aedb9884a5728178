"""Answers to one prompt that begin together: one computes the prompt's K/V, and the tokens are those of each alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.dmax import DMaxSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.events import RequestStep
from lopa_ray.scheduling.prefix_index import PrefixIndex
from support.in_process_group import InProcessGroup
from support.tiny_model import load_tiny_model

PROMPT = [*range(40)]
COMMON: dict[str, Any] = {"max_new_tokens": 16, "block_size": 8, "temperature": 1.0}
VERIFIED: dict[str, Any] = {"num_branches": 4, "lookahead": "verified"}
SHARED: dict[str, GenerationSettings] = {
    "block_diffusion": BlockDiffusionSettings(**COMMON),
    "verified": BlockDiffusionSettings(**COMMON, **VERIFIED, trajectory=True),
    "multi_block": MultiBlockSettings(**COMMON),
    "editing": EditingSettings(**{**COMMON, "temperature": 0.0}),
    "dmax": DMaxSettings(**{**COMMON, "temperature": 0.0}),
    "single_phase": LopaSettings(**COMMON, **VERIFIED, window_attention="block_causal"),
    "d2f": D2FSettings(**COMMON, window_attention="block_causal"),
    "self_speculation": SelfSpeculationSettings(**COMMON),
}
NOT_SHARED = {"full attention": LopaSettings(**COMMON, num_branches=3)}


@dataclass
class Decoded:
    """What came of requests that were submitted together."""

    answers: list[list[int]]
    prompt_rows: Counter[int] = field(
        default_factory=Counter
    )  # request → positions of the prompt that it computed
    first_step: dict[int, int] = field(default_factory=dict)


def decode(group: InProcessGroup, sessions: list[DecodeSession]) -> Decoded:
    ids = [group.scheduler.submit(session) for session in sessions]
    decoded = Decoded([])
    step = 0
    while group.scheduler.busy:
        step += 1
        plans = group.scheduler.plan(len(group.runners))
        assert plans, "no request can take part in a step"
        for scheduled in plans[0].requests:
            decoded.first_step.setdefault(scheduled.request_id, step)
            if scheduled.plan.step == 1:
                stored = sum(len(part.span) for part in scheduled.stored_prefix)
                decoded.prompt_rows[scheduled.request_id] += len(PROMPT) - stored
        assert all(isinstance(event, RequestStep) for event in group.scheduler.advance(group.evaluate(plans)))
    assert ids == sorted(decoded.first_step)
    decoded.answers = [session.generated for session in sessions]
    return decoded


def new_group(settings: GenerationSettings, positions: int = 4 * 96, workers: int = 2) -> InProcessGroup:
    name = "dream-tiny-4l" if isinstance(settings, LopaSettings | D2FSettings) else "sdar-tiny-3l"
    return InProcessGroup(load_tiny_model(name), workers, prefix_index=PrefixIndex(positions))


def sessions_of(group: InProcessGroup, settings: GenerationSettings, count: int = 4) -> list[DecodeSession]:
    return [group.create_session(PROMPT, settings.replace(seed=seed)) for seed in range(count)]


@pytest.mark.parametrize("kind", [*SHARED, *NOT_SHARED])
def test_one_of_a_group_computes_the_prompt(kind: str) -> None:
    settings = (SHARED | NOT_SHARED)[kind]
    group, plain = new_group(settings), new_group(settings, positions=0)
    together, apart = (decode(each, sessions_of(each, settings)) for each in (group, plain))
    assert together.answers == apart.answers
    assert list(apart.prompt_rows.values()) == [40] * 4
    assert list(together.prompt_rows.values()) == ([40, 0, 0, 0] if kind in SHARED else [40] * 4)


def test_clients_do_not_wait_for_each_other() -> None:
    settings = SHARED["block_diffusion"]
    group = new_group(settings)
    sessions = sessions_of(group, settings)
    for session in sessions[2:]:
        session.client = "other"
    decoded = decode(group, sessions)
    assert (decoded.first_step[1], decoded.first_step[3]) == (1, 1)
    assert decoded.first_step[2] > 1 < decoded.first_step[4]


def test_none_waits_twice() -> None:
    """An answer that ends with its first step stores nothing, and neither does one that does not fit."""
    one_step = SHARED["single_phase"].replace(confidence_threshold=0.0, max_new_tokens=8)
    group = new_group(one_step)
    assert [*decode(group, sessions_of(group, one_step)).first_step.values()] == [1, 2, 2, 2]
    settings = SHARED["block_diffusion"]
    small = new_group(settings, positions=39)
    assert [*decode(small, sessions_of(small, settings)).first_step.values()] == [1, 2, 2, 2]


def test_the_others_go_on_without_the_first() -> None:
    settings = SHARED["block_diffusion"]
    group = new_group(settings)
    first, *others = sessions_of(group, settings)
    cancelled = group.scheduler.submit(first)
    group.step()
    group.scheduler.cancel(cancelled)
    group.scheduler.drain()
    plain = new_group(settings, positions=0)
    assert decode(group, others).answers == decode(plain, sessions_of(plain, settings)[1:]).answers


def test_a_request_that_runs_alone_waits_for_none() -> None:
    settings = SHARED["block_diffusion"]
    group = new_group(settings)
    for request_id in range(1, 5):
        group.scheduler.poison.add_losses(request_id, 2)
    decoded = decode(group, sessions_of(group, settings))
    assert [*decoded.first_step.values()] == [1, 2, 3, 4]


def test_lost_workers_while_others_wait() -> None:
    settings = SHARED["verified"]
    group, plain = new_group(settings), new_group(settings, positions=0)
    sessions = sessions_of(group, settings)
    for session in sessions:
        group.scheduler.submit(session)
    group.step()
    group.regroup(group.runners[1:])  # what is stored is gone, and so is what was about to be
    while group.scheduler.busy:
        group.step()
    assert [session.generated for session in sessions] == decode(plain, sessions_of(plain, settings)).answers
