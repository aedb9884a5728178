"""The one-process engine in programs with threads: simultaneous calls share steps, and none disturbs another."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.likelihood import LikelihoodRequest, log_likelihoods
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CapacityError
from support.tiny_model import tiny_config

PROMPTS = [[1, 2], [3], [4, 5], [6, 7, 8]]
FAST = LopaSettings(max_new_tokens=16, block_size=8, num_branches=3, confidence_threshold=0.5)
DRAWN = FAST.replace(temperature=1.5)


@pytest.fixture(scope="module", params=[False, True], ids=["one step", "overlap"])
def shared(request: pytest.FixtureRequest) -> LocalEngine:
    return LocalEngine.from_config(tiny_config(group={"overlap_schedule": request.param}))


@pytest.fixture
def engine(shared: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    yield shared
    monkeypatch.undo()
    assert shared.generate(PROMPTS[0], FAST).tokens


def stream(engine: LocalEngine, number: int) -> list[Sequence[int]]:
    return [chunk.canvas for chunk in engine.stream(PROMPTS[number], DRAWN, seed=number)]


def of_a_prompt(engine: LocalEngine, number: int) -> list[int]:
    return engine.generate(PROMPTS[number], DRAWN, seed=number).token_ids


def of_a_list(engine: LocalEngine, number: int) -> list[list[int]]:
    return [result.token_ids for result in engine.generate(PROMPTS[number:], FAST)]


def likelihoods(engine: LocalEngine, number: int) -> dict[int, Any]:
    return dict(log_likelihoods(engine, [LikelihoodRequest(PROMPTS[number], [9, 10, 11])], mc_num=8))


def inside_of_another(engine: LocalEngine, number: int) -> list[list[int]]:
    inner: list[list[int]] = []
    outer = engine.generate(
        PROMPTS[number], FAST, on_step=lambda *_: inner.append(of_a_prompt(engine, number))
    )
    return [outer.token_ids, *inner]


def abandoned(engine: LocalEngine, number: int) -> int:
    chunks = engine.stream(PROMPTS[number], FAST)
    next(chunks)
    cycle: list[object] = [chunks]
    cycle.append(cycle)  # left to the garbage collector, which runs in any thread, in the middle of a step
    return number


def failing(engine: LocalEngine, number: int) -> str:
    with pytest.raises(ZeroDivisionError) as caught:
        engine.generate(PROMPTS, FAST, on_step=lambda *_: 1 // 0)
    return str(caught.value)


CALLS: list[Callable[[LocalEngine, int], Any]] = [
    *(stream, of_a_prompt, of_a_list, likelihoods, inside_of_another, abandoned, failing)
]


@pytest.mark.medium
def test_simultaneous_calls_have_the_results_of_calls_alone(engine: LocalEngine) -> None:
    calls = [(call, number) for number in range(len(PROMPTS)) for call in CALLS]
    alone = [call(engine, number) for call, number in calls]
    with ThreadPoolExecutor(8) as pool:
        together = [pool.submit(call, engine, number) for call, number in calls]
        assert [future.result() for future in together] == alone
    gc.collect()


def test_a_stream_that_is_read_slowly_takes_part_and_goes_on_in_another_thread(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [chunk.canvas for chunk in engine.stream(PROMPTS[0], FAST)]
    slow = engine.stream(PROMPTS[0], FAST)
    first = next(slow)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engine.generate, PROMPTS[1:], FAST.replace(max_new_tokens=64)).result()
        # Its own steps were made by the other call, in the same batches.
        monkeypatch.setattr(engine.runner, "launch", lambda plan: pytest.fail("a step of its own"))
        assert [
            first.canvas,
            *pool.submit(lambda: [chunk.canvas for chunk in slow]).result(),
        ] == expected


def test_a_request_whose_steps_fail_ends_alone(engine: LocalEngine) -> None:
    expected = [chunk.canvas for chunk in engine.stream(PROMPTS[0], FAST)]
    too_long = [1] * engine.config.model.max_model_len  # past the engine's own check
    chunks = engine.stream(PROMPTS[0], FAST)
    first = next(chunks)
    ((_, error),) = engine.run([new_session(too_long, FAST, engine.vocabulary)])
    assert isinstance(error, CapacityError)
    assert [first.canvas, *(chunk.canvas for chunk in chunks)] == expected
