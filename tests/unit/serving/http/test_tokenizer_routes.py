"""/tokenize and /detokenize: vLLM's shapes, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cluster.choices.messages import PromptToTokenize
from lopa_ray.errors import OverloadedError, PromptError
from support.fake_backend import (
    HI,
    MAX_MODEL_LEN,
    MODEL,
    OTHER_MODEL,
    VOCABULARY_SIZE,
    FakeBackend,
    Server,
    error_of,
    serving,
)

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


def test_a_text(server: Server, client: httpx.Client) -> None:
    body = {"model": OTHER_MODEL, "prompt": "hi"}
    answer = {"count": 3, "max_model_len": MAX_MODEL_LEN, "tokens": [1, 104, 105], "token_strs": None}
    assert client.post(TOKENIZE, json=body).json() == answer
    assert server.backend.tokenized == [(OTHER_MODEL, PromptToTokenize("hi"))]
    plain = client.post(
        TOKENIZE, json={**body, "add_special_tokens": False, "return_token_strs": True}
    ).json()
    assert plain == {**answer, "count": 2, "tokens": [104, 105], "token_strs": ["h", "i"]}
    assert client.post(TOKENIZE, json={**body, "prompt": ""}).json()["tokens"] == [1]
    assert client.post(TOKENIZE, json={**body, "parse_special": False}).status_code == 200
    assert server.backend.tokenized[-1] == (OTHER_MODEL, PromptToTokenize("hi", parse_special=False))


def test_a_chat_is_the_prompt_of_a_chat_completion(server: Server, client: httpx.Client) -> None:
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, *HI]
    neutral = {"add_generation_prompt": True, "add_special_tokens": False, "continue_final_message": False}
    neutral |= {"tools": None, "chat_template_kwargs": {}}
    body = {"model": MODEL, "messages": messages}
    tokenized = client.post(TOKENIZE, json={**body, **neutral})
    assert tokenized.json()["count"] == len("Be brief.hi")
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    request = server.backend.requests[-1][1]
    assert [given.prompt for _, given in server.backend.tokenized] == list(request.prompts)


def test_a_chat_with_tools_is_too(server: Server, client: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    fields = {"tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
    body = {"model": MODEL, "messages": HI, **fields}
    assert client.post(TOKENIZE, json={**body, "add_generation_prompt": False}).status_code == 200
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    ((_, given),), request = server.backend.tokenized, server.backend.requests[-1][1]
    assert given.tools == request.tools
    assert given.template_variables == {**request.template_variables, "add_generation_prompt": False}


def test_tokens(client: httpx.Client) -> None:
    assert client.post(DETOKENIZE, json={"model": MODEL, "tokens": [104, 105]}).json() == {"prompt": "hi"}
    assert client.post(DETOKENIZE, json={"model": MODEL, "tokens": []}).json() == {"prompt": ""}


@pytest.mark.medium
def test_the_only_model_need_not_be_named() -> None:
    with serving(FakeBackend(models=(OTHER_MODEL,))) as server:
        assert httpx.post(f"{server.url}{TOKENIZE}", json={"prompt": "hi"}, timeout=30).json()["count"] == 3
        assert httpx.post(f"{server.url}{DETOKENIZE}", json={"tokens": [104]}, timeout=30).json() == {
            "prompt": "h"
        }
        assert server.backend.tokenized == [(OTHER_MODEL, PromptToTokenize("hi"))]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (TOKENIZE, {"prompt": "hi"}, 400, "missing_parameter", "model"),
        (TOKENIZE, {"model": "no", "prompt": "hi"}, 404, "model_not_found", "model"),
        (TOKENIZE, {"model": MODEL}, 400, "missing_parameter", "prompt"),
        (TOKENIZE, {"model": MODEL, "prompt": "hi", "messages": HI}, 400, "invalid_value", "prompt"),
        (
            TOKENIZE,
            {"model": MODEL, "messages": [{"role": "root", "content": ""}]},
            400,
            "invalid_value",
            None,
        ),
        (
            TOKENIZE,
            {"model": MODEL, "messages": HI, "add_special_tokens": True},
            400,
            "invalid_value",
            "add_special_tokens",
        ),
        (
            TOKENIZE,
            {"model": MODEL, "messages": HI, "parse_special": True},
            400,
            "invalid_value",
            "parse_special",
        ),
        (
            TOKENIZE,
            {"model": MODEL, "messages": HI, "continue_final_message": True},
            400,
            "unsupported_parameter",
            "continue_final_message",
        ),
        (TOKENIZE, {"model": MODEL, "prompt": "x" * 2**20}, 413, "body_too_large", None),
        (DETOKENIZE, {"model": MODEL, "tokens": [-1]}, 400, "invalid_value", "tokens[0]"),
        (DETOKENIZE, {"model": MODEL, "tokens": [VOCABULARY_SIZE]}, 400, "invalid_prompt", "tokens"),
    ],
)
def test_refusals(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    error = error_of(client.post(path, json=body), status)
    assert error.code == code
    assert error.param == (param if param or status == 413 else "messages[0].role")


def test_what_the_group_says(server: Server, client: httpx.Client) -> None:
    server.backend.rejection = PromptError("the template does not accept these messages (max_new_tokens)")
    for body, param in (({"prompt": "x"}, "prompt"), ({"messages": HI}, "messages")):
        assert error_of(client.post(TOKENIZE, json={"model": MODEL, **body}), 400).param == param
    server.backend.rejection = OverloadedError("the queue is full; try again later")
    for path, body in ((TOKENIZE, {"prompt": "x"}), (DETOKENIZE, {"tokens": [1]})):
        response = client.post(path, json={"model": MODEL, **body})
        assert error_of(response, 429).code == "queue_full" and response.headers["retry-after"]
