"""What users of OpenAI's own client see, sync and async, streaming and not."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client_request import PROMPT, ClientRequest
from support.server_process import ServerProcess

MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]


def test_lists_models(ai: openai.OpenAI) -> None:
    assert [model.id for model in ai.models.list()] == ["demo", "demo-d2f"]
    assert ai.models.retrieve("demo-d2f").id == "demo-d2f"


def test_unknown_model(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"'demo2'.*demo, demo-d2f") as caught:
        ai.chat.completions.create(model="demo2", messages=MESSAGES)
    assert caught.value.code == "model_not_found"


def test_chat_and_its_stream(ai: openai.OpenAI, engines: dict[str, LocalEngine]) -> None:
    # Small blocks and hardly more than a token per step, so that the text comes in pieces.
    slow: dict[str, Any] = {"block_size": 8, "confidence_threshold": 1.0}
    alone = ClientRequest(settings=slow).decode_locally(engines["demo"])
    whole = ai.chat.completions.create(model="demo", messages=MESSAGES, extra_body={"lopa": slow})
    choice, usage = whole.choices[0], whole.usage
    assert (choice.message.content, choice.finish_reason) == (alone.text, alone.finish_reason)
    assert usage is not None and usage.prompt_tokens == 4 + len(
        engines["demo"].encode(f"user\n{PROMPT}\nassistant\n", raw=True)
    )
    assert usage.completion_tokens == len(alone.tokens) + 1  # EOS
    chunks = list(
        ai.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"lopa": slow},
        )
    )
    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == alone.text
    assert sum(bool(piece.choices[0].delta.content) for piece in pieces) > 3
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices[0].finish_reason] == ["stop"]
    assert not last.choices and last.usage == usage


def test_completion_and_its_stream(ai: openai.OpenAI, engines: dict[str, LocalEngine]) -> None:
    engine = engines["demo"]
    alone = engine.generate(PROMPT, engine.config.decode.replace(max_new_tokens=40), raw=True)
    whole = ai.completions.create(model="demo", prompt=PROMPT, max_tokens=40, echo=True)
    assert whole.choices[0].text == PROMPT + (alone.text or "")
    assert whole.choices[0].finish_reason == alone.finish_reason
    stream = ai.completions.create(model="demo", prompt=PROMPT, max_tokens=40, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == alone.text


def test_several_prompts_and_choices(ai: openai.OpenAI, engines: dict[str, LocalEngine]) -> None:
    engine = engines["demo"]
    prompts = [engine.encode(PROMPT), engine.encode("7 * 8 =")]
    reply = ai.completions.create(model="demo", prompt=prompts, n=2, max_tokens=12, temperature=0.8, seed=11)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    settings = engine.config.decode.replace(max_new_tokens=12, temperature=0.8)
    expected = [
        engine.generate(prompt, settings.replace(seed=seed)).text for prompt in prompts for seed in (11, 12)
    ]
    assert [choice.text for choice in reply.choices] == expected


def test_logprobs(ai: openai.OpenAI) -> None:
    reply = ai.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=16, logprobs=True, top_logprobs=3
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    assert "".join(token.token for token in logprobs.content) == reply.choices[0].message.content
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        # Greedy: the chosen one leads.
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
        assert token.logprob <= 0


def test_stop_strings_end_the_text(ai: openai.OpenAI, engines: dict[str, LocalEngine]) -> None:
    alone = ClientRequest().decode_locally(engines["demo"])
    text, tokens = alone.text, [token for token, _, _ in alone.tokens]
    # It begins within a token and ends within another.
    at = next(at for at in range(3, len(tokens)) if min(map(len, tokens[at : at + 2])) > 1)
    stop = tokens[at][1:] + tokens[at + 1][:-1]
    for stream in (False, True):
        reply: Any = ai.chat.completions.create(
            model="demo", messages=MESSAGES, stop=["never", stop], stream=stream
        )
        if stream:
            chunks = [chunk.choices[0] for chunk in reply]
            got = "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason
        else:
            got = reply.choices[0].message.content, reply.choices[0].finish_reason
        assert got == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize("length", [1, 33, 100])
def test_max_tokens_is_exact(ai: openai.OpenAI, length: int) -> None:
    reply = ai.chat.completions.create(
        model="demo-d2f", messages=MESSAGES, max_completion_tokens=length, extra_body={"ignore_eos": True}
    )
    assert reply.usage is not None and reply.usage.completion_tokens == length
    assert reply.choices[0].finish_reason == "length"


def test_a_seed_makes_draws_reproducible(ai: openai.OpenAI) -> None:
    def draw(seed: int) -> str | None:
        # A prompt that leaves much open.
        reply = ai.completions.create(
            model="demo",
            prompt="Tom",
            max_tokens=32,
            temperature=0.8,
            seed=seed,
            extra_body={"ignore_eos": True},
        )
        return reply.choices[0].text

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_settings_of_the_decoder(ai: openai.OpenAI) -> None:
    def stats(**lopa: Any) -> dict[str, Any]:
        reply = ai.chat.completions.create(model="demo", messages=MESSAGES, extra_body={"lopa": lopa})
        assert reply.model_extra is not None
        cost: dict[str, Any] = reply.model_extra["lopa"]
        return cost

    plain, lookahead = stats(num_branches=1), stats(num_branches=6)
    assert plain["forwards"] == plain["steps"]
    assert lookahead["forwards"] > lookahead["steps"]
    assert lookahead["tpf"] > 1
    with pytest.raises(openai.BadRequestError, match="num_branches"):
        stats(num_branches=0)


def test_both_models_at_once(server: ServerProcess, engines: dict[str, LocalEngine]) -> None:
    async def chat(ai: openai.AsyncOpenAI, model: str, *, stream: bool) -> str:
        reply: Any = await ai.chat.completions.create(model=model, messages=MESSAGES, stream=stream)
        if not stream:
            return str(reply.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in reply])

    async def chat_with_both() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.api_key) as ai:
            replies = [chat(ai, model, stream=stream) for model in engines for stream in (False, True)]
            return await asyncio.gather(*replies)

    texts = [ClientRequest().decode_locally(engine).text for engine in engines.values()]
    assert asyncio.run(chat_with_both()) == [texts[0]] * 2 + [texts[1]] * 2
