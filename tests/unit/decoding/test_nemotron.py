"""Nemotron-Labs-Diffusion's decoders: budgets of thinking, and that drafts change no token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.events import RequestStep
from support.paths import MODELS

pytestmark = pytest.mark.medium

PROMPTS = [[1, 2, 3], [*range(20, 60)], [9] * 17]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    torch.set_num_threads(1)
    with LocalEngine.from_pretrained(MODELS / "nemotron-tiny-3l", max_model_len=128) as opened:
        yield opened


@pytest.mark.parametrize(
    ("block_size", "sampling"),
    [(16, {}), (7, {"temperature": 1.0}), (2, {"temperature": 0.7, "top_k": 5})],
)
def test_self_speculation_gives_the_tokens_of_autoregressive_decoding(
    engine: LocalEngine, sampling: dict[str, Any], block_size: int
) -> None:
    for seed in range(3):
        plain = NemotronSettings(max_new_tokens=24, block_size=1, seed=seed, **sampling)
        joint = SelfSpeculationSettings(
            max_new_tokens=24,
            block_size=block_size,
            num_branches=[1, 4, "auto"][seed],
            seed=seed,
            **sampling,
        )
        drafted = joint.replace(drafting="separate", num_branches=1)
        expected, *others = (
            [r.token_ids for r in engine.generate(PROMPTS, s)] for s in (plain, drafted, joint)
        )
        assert others == [expected, expected]
        if sampling:
            other_seed = engine.generate(PROMPTS, plain.replace(seed=seed + 9))
            assert [r.token_ids for r in other_seed] != expected


def test_no_branch_has_more_rows_than_the_first(engine: LocalEngine) -> None:
    """Whether a request fits into a step is checked once, with its first plan."""
    for block_size, num_branches in (1, 8), (2, 8), (16, 1), (16, 8):
        settings = SelfSpeculationSettings(
            max_new_tokens=60, block_size=block_size, num_branches=num_branches, ignore_eos=True
        )
        for prompt in ([5], *PROMPTS):
            events = engine.events([engine.create_session(prompt, settings)])
            first, *later = [event.plan.max_branch_rows for event in events if isinstance(event, RequestStep)]
            assert max(later) <= first


@pytest.mark.parametrize("block_size", [1, 2])
def test_what_drafts_nothing_takes_a_row_per_token(engine: LocalEngine, block_size: int) -> None:
    joint = SelfSpeculationSettings(max_new_tokens=8, block_size=block_size, num_branches=4, ignore_eos=True)
    for settings in (joint, NemotronSettings(max_new_tokens=8, block_size=1, ignore_eos=True)):
        events = engine.events([engine.create_session(PROMPTS[0], settings)])
        plans = [event.plan for event in events if isinstance(event, RequestStep)]
        assert [plan.num_rows for plan in plans] == [3] + [1] * 7
        assert not any(plan.sampling_params.top_logprobs for plan in plans)


def test_a_budget_whose_token_ends_the_answer_and_a_least_length_exclude_each_other(
    engine: LocalEngine,
) -> None:
    eos = engine.vocabulary.eos_token_id
    budget = {"max_new_tokens": 16, "block_size": 8, "max_thinking_tokens": 2}
    wanted = NemotronSettings(**budget, end_think_token_id=eos, min_tokens=8)
    with pytest.raises(SettingsError, match="min_tokens 8 with end_think_token_id") as refused:
        engine.create_session(PROMPTS[0], wanted)
    assert refused.value.setting == "min_tokens"
    (ended,) = engine.generate(PROMPTS[:1], wanted.replace(min_tokens=0))
    assert ended.tokens <= 3
    engine.create_session(PROMPTS[0], wanted.replace(end_think_token_id=7))


def test_an_end_of_thinking_that_is_no_token_is_refused(engine: LocalEngine) -> None:
    settings = NemotronSettings(max_new_tokens=16, max_thinking_tokens=2, end_think_token_id=5000)
    with pytest.raises(SettingsError, match="end_think_token_id: got 5000"):
        engine.create_session(PROMPTS[0], settings)
