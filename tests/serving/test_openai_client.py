"""What users of OpenAI's own client see, sync and async, streaming and not."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client_request import PROMPT, ClientRequest

pytestmark = pytest.mark.medium

MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]


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
