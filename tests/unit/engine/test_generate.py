"""Calls of an engine as users of other engines write them: keywords, mappings, one chat, streams, `repr`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing

import pytest

from lopa_ray import (
    AsyncEngine,
    D2FSettings,
    GenerationChunk,
    GenerationResult,
    LocalEngine,
    LopaSettings,
    PromptError,
    SettingsError,
)
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.protocol.events import RequestEvent

pytestmark = pytest.mark.medium

PROBLEM = "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?"
CHAT = [{"role": "user", "content": PROBLEM}]
SHORT = {"max_new_tokens": 48, "block_size": 8}


class AsyncLocalEngine(AsyncEngine):
    """A local engine for asyncio programs."""

    def __init__(self, local: LocalEngine) -> None:
        super().__init__(local.config, local.vocabulary, local.tokenizer)
        self._local = local

    async def events(self, sessions: Sequence[RequestSession]) -> AsyncGenerator[RequestEvent, None]:
        with closing(self._local.events(sessions)) as events:
            for event in events:
                yield event


def told(result: GenerationResult) -> tuple[object, ...]:
    """All of a result but its time."""
    return result.token_ids, result.text, result.steps, result.forwards


def test_settings_are_keywords_a_mapping_or_an_object(engine: LocalEngine) -> None:
    expected = told(engine.generate(PROBLEM, LopaSettings(num_branches=2, **SHORT)))
    assert told(engine.generate(PROBLEM, num_branches=2, **SHORT)) == expected
    assert told(engine.generate(PROBLEM, {"num_branches": 2, **SHORT})) == expected
    assert told(engine.generate(PROBLEM, LopaSettings(num_branches=3, **SHORT), num_branches=2)) == expected
    assert told(engine.generate(PROBLEM, {"num_branches": 3, **SHORT}, num_branches=2)) == expected
    assert told(engine.generate([PROBLEM], num_branches=2, **SHORT)[0]) == expected
    assert expected[3] > expected[2]


def test_what_is_not_named_is_the_configurations(engine: LocalEngine) -> None:
    decode = engine.config.decode
    assert engine.decode_settings() is engine.decode_settings({}) is decode
    assert engine.decode_settings(seed=3) == engine.decode_settings({"seed": 3}) == decode.replace(seed=3)
    assert isinstance(engine.decode_settings(decoder="d2f"), D2FSettings)


def test_wrong_settings_are_named(engine: LocalEngine) -> None:
    with pytest.raises(SettingsError, match=r"num_branchs.*did you mean num_branches"):
        engine.generate(PROBLEM, num_branchs=2)
    with pytest.raises(SettingsError, match="num_branches"):
        engine.generate(PROBLEM, {"num_branches": 0})
    with pytest.raises(SettingsError, match="settings of type str"):
        engine.generate(PROBLEM, PROBLEM)


def test_a_list_of_messages_is_one_chat(engine: LocalEngine) -> None:
    expected = told(engine.generate(PROBLEM, **SHORT))
    assert told(engine.generate(CHAT, **SHORT)) == expected
    assert [told(result) for result in engine.generate([CHAT, CHAT], **SHORT)] == [expected] * 2
    with pytest.raises(PromptError, match="type dict"):
        engine.generate([CHAT[0], PROBLEM])


def check_chunks(chunks: list[GenerationChunk], expected: GenerationResult, mask: int) -> None:
    assert [chunk.step for chunk in chunks] == [*range(1, expected.steps + 1)]
    assert "".join(chunk.text or "" for chunk in chunks) == expected.text
    assert [chunk.result is None for chunk in chunks] == [True] * (expected.steps - 1) + [False]
    assert told(chunks[-1].result) == told(expected)
    assert mask in chunks[0].canvas and mask not in chunks[-1].canvas[: expected.tokens]
    assert any(chunk.text for chunk in chunks[:-1])


def test_a_stream_has_text_and_canvas_of_each_step(engine: LocalEngine) -> None:
    expected = engine.generate(PROBLEM, **SHORT)
    check_chunks([*engine.stream(PROBLEM, **SHORT)], expected, engine.vocabulary.mask_token_id)
    check_chunks([*engine.stream(CHAT, SHORT)], expected, engine.vocabulary.mask_token_id)
    with pytest.raises(SettingsError):
        engine.stream(PROBLEM, seeds=1)


def test_a_stream_of_no_steps_has_the_result(engine: LocalEngine) -> None:
    (chunk,) = engine.stream(PROBLEM, max_new_tokens=0)
    assert (chunk.step, chunk.text, chunk.canvas) == (0, "", ()) and chunk.result.text == ""


def test_a_stream_that_is_closed_frees_its_slot(engine: LocalEngine) -> None:
    for _ in range(engine.config.model.max_num_seqs + 1):
        with closing(engine.stream(PROBLEM, **SHORT)) as chunks:
            next(chunks)
    assert engine.generate(PROBLEM, **SHORT).text


def test_an_asynchronous_engine_has_the_same_calls(engine: LocalEngine) -> None:
    async def run() -> None:
        other = AsyncLocalEngine(engine)
        expected = engine.generate(PROBLEM, **SHORT)
        assert told(await other.generate(CHAT, SHORT)) == told(await other.generate(PROBLEM, **SHORT))
        async with aclosing(other.stream(PROBLEM, **SHORT)) as chunks:
            check_chunks([chunk async for chunk in chunks], expected, engine.vocabulary.mask_token_id)
        (chunk,) = [chunk async for chunk in other.stream(PROBLEM, max_new_tokens=0)]
        assert chunk.result is not None

    asyncio.run(run())


def test_repr_says_model_device_and_workers(engine: LocalEngine) -> None:
    assert repr(engine) == "LocalEngine(model='demo', device='cpu', workers=1)"
    workers = engine.config.group.num_workers
    assert (
        repr(AsyncLocalEngine(engine)) == f"AsyncLocalEngine(model='demo', device='cpu', workers={workers})"
    )
