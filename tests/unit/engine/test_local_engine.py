"""The one-process engine as a library: batches, prompts, seeds, and what a mistake leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.base import Prompt
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import LopaError, PromptError, SettingsError
from support.paths import MODELS

MASK = 127
FAST = LopaSettings(max_new_tokens=16, block_size=8, num_branches=3, confidence_threshold=0.5)


def make(name: str = "dream-tiny-2l", **model: Any) -> LocalEngine:
    torch.set_num_threads(1)
    return LocalEngine.from_pretrained(MODELS / name, **{"max_num_seqs": 3, "max_model_len": 96, **model})


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalEngine]:
    with make("dream-tiny-2l-eos") as engine:
        yield engine


@pytest.fixture
def engine(shared) -> Iterator[LocalEngine]:
    """Usable before and after every test, with all slots."""
    expected = plain(shared)
    yield shared
    assert plain(shared) == expected


def plain(engine: LocalEngine) -> list[list[int]]:
    return [r.token_ids for r in engine.generate([[1, 2], [3], [4, 5], [6]], FAST)]


def test_a_list_gives_a_list_and_one_prompt_one_result(engine):
    one = engine.generate([1, 2], FAST)
    (listed,) = engine.generate([[1, 2]], FAST)
    assert one.token_ids == listed.token_ids
    assert engine.generate((1, 2), FAST).token_ids == one.token_ids
    assert engine.generate([], FAST) == []
    assert one.text is None
    assert one.trace == ()
    assert one.tpf == one.tokens / one.steps
    assert one.tps > 0


def test_steps_are_reported_as_they_happen(engine):
    seen: list[tuple[int, int]] = []
    results = engine.generate(
        [[1, 2], [3]], FAST, on_step=lambda index, step: seen.append((index, step.step))
    )
    for index, result in enumerate(results):
        assert [step for at, step in seen if at == index] == list(range(1, result.steps + 1))


def test_nothing_to_generate(engine):
    result = engine.generate([1, 2], FAST.replace(max_new_tokens=0))
    assert (result.token_ids, result.steps, result.finish_reason, result.tpf) == ([], 0, "length", 0.0)
    mixed = [engine.create_session([1, 2], FAST.replace(max_new_tokens=n)) for n in (0, 4, 0)]
    results = dict(engine.run(mixed))
    assert [results[i].steps > 0 for i in range(3)] == [False, True, False]


def test_seeds(engine):
    drawn = FAST.replace(temperature=1.5)
    results = {
        seed: [engine.generate([1, 2], drawn.replace(seed=seed)).token_ids for _ in range(2)]
        for seed in range(4)
    }
    assert all(first == again for first, again in results.values())
    assert len({tuple(first) for first, _ in results.values()}) > 1
    cold = [engine.generate([1, 2], FAST.replace(seed=seed)).token_ids for seed in range(3)]
    assert cold[0] == cold[1] == cold[2]


# Mistakes

WRONG: list[tuple[Prompt, str]] = [
    ([[]], "empty"),
    ([1, MASK], "mask"),
    ([1] * 81, "exceed max_model_len 96"),
    ("text", "tokenizer"),
    ([{"role": "user", "content": "x"}], "no tokenizer"),
    ([[{"role": "user", "content": "x"}]], "tokenizer"),
    ([1.5], "prompt"),
    ([True], "prompt"),
    (3, "int"),
]


@pytest.mark.medium
@pytest.mark.parametrize(("prompt", "match"), WRONG, ids=str)
def test_a_wrong_prompt_is_one_clear_error(engine, prompt, match):
    with pytest.raises(LopaError, match=match) as caught:
        engine.generate(prompt, FAST)
    assert isinstance(caught.value, PromptError)


def test_a_wrong_prompt_among_others_runs_nothing(engine):
    with pytest.raises(PromptError, match="mask"):
        engine.generate([[1, 2], [MASK]], FAST, on_step=lambda *_: pytest.fail("something ran"))


def test_a_finished_session_among_others_is_refused_and_leaves_nothing(engine):
    done = new_session([1], FAST.replace(max_new_tokens=0), engine.vocabulary)
    with pytest.raises(LopaError, match="finished"):
        list(engine.events([engine.create_session([1], FAST), done]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_decodes(dtype):
    with make(dtype=dtype) as engine:
        for settings in (FAST, FastDllmSettings(max_new_tokens=16, block_size=8)):
            assert len(engine.generate([1, 2, 3], settings.replace(ignore_eos=True)).token_ids) == 16


def test_broken_weights_are_an_error_and_no_tokens():
    with make() as engine:
        engine.runner.model.norm.weight.fill_(float("nan"))
        with pytest.raises(LopaError, match="NaN"):
            engine.generate([1, 2], FAST)


def test_a_bound_on_a_forward_changes_no_token_and_refuses_a_longer_branch() -> None:
    bounded, free = make(max_num_batched_tokens=48), make()
    settings = FAST.replace(max_new_tokens=40, num_branches=4)
    results = [engine.generate([[1, 2], [3]], settings) for engine in (bounded, free)]
    of_bounded, of_free = ([replace(result, seconds=0.0) for result in of_engine] for of_engine in results)
    assert of_bounded == of_free and of_free[0].forwards > of_free[0].steps
    with pytest.raises(
        SettingsError, match=r"has 56 positions; allowed: at most 48 .*max_num_batched_tokens"
    ):
        bounded.create_session([1] * 16, settings.replace(block_size=40))
