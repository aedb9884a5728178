"""Which requests are refused, and what their errors name."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from cluster.openai.completions.chat import ChatRequest
from cluster.openai.errors import ApiError
from support.fake_backend import CHAT, HI, MODEL, TEXT, error_of

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}

HTTP_SETTINGS = {"max_body_bytes": 20_000}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        # Of another type: nothing is converted.
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"max_tokens": "3"}, "max_tokens", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"stream": 1}, "stream", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"stop": ["a", 1]}, "stop[1]", "invalid_value"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", "invalid_value"),
        ({"lopa": {"stop_token_ids": [1]}}, "lopa.stop_token_ids", "unsupported_parameter"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_value"),
        ({"user": 1}, "user", "invalid_value"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": "1"}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"1": None}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"hi": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1" * 20: 1}}, "logit_bias", "invalid_value"),
        ({"model": None}, "model", "missing_parameter"),
        ({"lopa": []}, "lopa", "invalid_value"),
        # Out of range.
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"1": -101}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"seed": -(2**63) - 1}, "seed", "invalid_value"),
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
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params", "unsupported_parameter"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs", "unsupported_parameter"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs", "unsupported_parameter"),
        ({"media_io_kwargs": {"a": {}}}, "media_io_kwargs", "unsupported_parameter"),
        ({"request_id": "mine"}, "request_id", "unsupported_parameter"),
        ({"add_special_tokens": True}, "add_special_tokens", "unsupported_parameter"),
        ({"lopa": {"presence_penalty": 1}}, "lopa.presence_penalty", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_parameter"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "invalid_value"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "invalid_value",
        ),
        ({"tools": [TOOL, TOOL]}, "tools", "invalid_value"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            "invalid_value",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "invalid_value",
        ),
        ({"bad_words": ["a"] * 257}, "bad_words", "invalid_value"),
        ({"guided_grammar": "root ::= a"}, "guided_grammar", "unsupported_parameter"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar", "unsupported_parameter"),
        ({"lopa": {"guided_regex": "a"}}, "lopa.guided_regex", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "unsupported_parameter",
        ),
        ({"lopa": {"seed": 1}}, "lopa.seed", "unsupported_parameter"),
        ({"lopa": {"max_new_tokens": 1}}, "lopa.max_new_tokens", "unsupported_parameter"),
        ({"lopa": {"decoder": ["lopa"]}}, "lopa.decoder", "unsupported_parameter"),
        ({"lopa": {"decoder": "x" * 101}}, "lopa.decoder", "unsupported_parameter"),
        # Unknown.
        ({"parse_special": True}, "parse_special", "unknown_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"": 1}, "", "unknown_parameter"),
        ({"lopa": {"nun_branches": 1}}, "lopa.nun_branches", "unknown_parameter"),
        ({"lopa": {"{0} %s": 1}}, "lopa.{0} %s", "unknown_parameter"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        # Messages.
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": [None]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_parameter"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "missing_parameter"),
        ({"messages": [*HI, {"role": "user", "content": []}]}, "messages[1].content", "invalid_value"),
        ({"messages": [{**HI[0], "tool_call_id": "1"}]}, "messages[0].tool_call_id", "unsupported_parameter"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function",
            "missing_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
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
    assert error.message.startswith(param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": list("abcdefghijklmnopq")}, "n"),
        ({"prompt": list("abc"), "n": 6}, "n"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": ["x"]}, "suffix"),
        ({"suffix": "x", "given_parts": [{"text": "x"}]}, "suffix"),
        ({"given_parts": [{"text": "x"}], "logprobs": 0}, "given_parts"),
        ({"given_parts": [{"text": ""}]}, "given_parts[0].text"),
        ({"given_parts": [{"hole": -1, "text": "x"}]}, "given_parts[0].hole"),
        ({"parse_special": 0}, "parse_special"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": HI}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_a_wrong_completion_field_is_named(client: httpx.Client, fields: Any, param: str) -> None:
    error = error_of(client.post(TEXT, json={"model": MODEL, "prompt": "hi", **fields}), 400)
    assert error.param == param


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
