"""Which requests are refused, and what their errors name."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from cluster.openai.completions.chat import ChatRequest
from cluster.openai.errors import ApiError
from support.fake_backend import CHAT, HI, MODEL, TEXT, error_of

HTTP_SETTINGS = {"max_body_bytes": 20_000}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        # Of another type: nothing is converted.
        ({"max_tokens": "3" * 10_000}, "max_tokens", "invalid_value"),
        ({"stream": 1}, "stream", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"stop": ["a", 1]}, "stop[1]", "invalid_value"),
        ({"lopa": {"stop_token_ids": [1]}}, "lopa.stop_token_ids", "unsupported_parameter"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_value"),
        ({"logit_bias": {"hi": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"model": None}, "model", "missing_parameter"),
        ({"lopa": []}, "lopa", "invalid_value"),
        # Out of range.
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"1": -101}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 2**31}, "max_tokens", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "invalid_value"),
        ({"stop": ""}, "stop[0]", "invalid_value"),
        ({"stop": ["a"] * 65}, "stop", "invalid_value"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a", "invalid_value"),
        ({"lopa": {"deadline": 0}}, "lopa.deadline", "invalid_value"),
        ({"lopa": {"deadline": 86401}}, "lopa.deadline", "invalid_value"),
        ({"lopa": {"block_size": 10**30}}, "lopa.block_size", "unsupported_parameter"),
        # Contradictions.
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"top_logprobs": 1}, "top_logprobs", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"best_of": 2}, "best_of", "invalid_value"),
        ({"lopa": {"stream_canvas": True}}, "lopa.stream_canvas", "invalid_value"),
        ({"lopa": {"partial": True}}, "lopa.partial", "invalid_value"),
        # Not supported.
        ({"cache_salt": "a"}, "cache_salt", "unsupported_parameter"),
        ({"add_special_tokens": True}, "add_special_tokens", "unsupported_parameter"),
        ({"bad_words": ["a"] * 257}, "bad_words", "invalid_value"),
        ({"guided_grammar": "root ::= a"}, "guided_grammar", "unsupported_parameter"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "unsupported_parameter",
        ),
        ({"lopa": {"decoder": ["lopa"]}}, "lopa.decoder", "unsupported_parameter"),
        ({"lopa": {"decoder": "x" * 101}}, "lopa.decoder", "unsupported_parameter"),
        # Unknown.
        ({"parse_special": True}, "parse_special", "unknown_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"lopa": {"nun_branches": 1}}, "lopa.nun_branches", "unknown_parameter"),
        ({"lopa": {"{0} %s": 1}}, "lopa.{0} %s", "unknown_parameter"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        # Messages.
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [None]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{**HI[0], "tool_call_id": "1"}]}, "messages[0].tool_call_id", "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_chat_field_is_named(client: httpx.Client, fields: Any, param: str, code: str) -> None:
    error = error_of(client.post(CHAT, json={"model": MODEL, "messages": HI, **fields}), 400)
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.message.startswith(param) and len(error.message) < 1000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": list("abcdefghijklmnopq")}, "n"),
        ({"prompt": list("abc"), "n": 6}, "n"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "x", "given_parts": [{"text": "x"}]}, "suffix"),
        ({"given_parts": [{"text": "x"}], "logprobs": 0}, "given_parts"),
        ({"given_parts": [{"text": ""}]}, "given_parts[0].text"),
        ({"given_parts": [{"hole": -1, "text": "x"}]}, "given_parts[0].hole"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_a_wrong_completion_field_is_named(client: httpx.Client, fields: Any, param: str) -> None:
    error = error_of(client.post(TEXT, json={"model": MODEL, "prompt": "hi", **fields}), 400)
    assert error.param == param


@pytest.mark.medium
def test_of_many_mistakes_not_all_are_looked_at() -> None:
    """They would take seconds and a gigabyte, and hold up all other requests meanwhile."""
    body: dict[str, Any] = {"model": MODEL, "messages": HI}
    count = 300_000
    with pytest.raises(ApiError, match=r"^messages\[0\]") as caught:
        ChatRequest.parse({**body, "messages": [1] * count})
    assert caught.value.status == 400
    many = ({"stop": [1] * count}, {"metadata": dict.fromkeys(map(str, range(count)), 1)})
    for fields in (*many, dict.fromkeys(map(str, range(count)), 1)):
        began = time.process_time()
        with pytest.raises(ApiError, match=r"wrong or unknown|allowed") as caught:
            ChatRequest.parse({**body, **fields})
        assert caught.value.status == 400
        assert time.process_time() - began < 2
