"""The errors of a decode group, with the client's names of fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cluster.openai.errors import api_error
from lopa_ray.decoding.decoders import parse_decoder_settings
from lopa_ray.errors import (
    LopaError,
    PromptError,
    PromptTooLongError,
    SettingsError,
)
from support.fake_backend import CHAT, HI, MODEL, RESPONSES, TEXT, Server, error_of


def caught(call: Callable[[], object]) -> LopaError:
    with pytest.raises(LopaError) as error:
        call()
    return error.value


TOO_LONG = PromptTooLongError(
    "9 prompt tokens and max_new_tokens 8 exceed max_model_len 16; lower max_new_tokens",
)
NO_SUCH_STEPS = caught(lambda: parse_decoder_settings({"decoder": "lopa", "steps": 8}))
TOO_SHORT = SettingsError(
    "the shortest answer that matches the pattern or schema has 9 tokens; max_new_tokens is 8",
    setting="guided_json",
)
NO_ROOM = SettingsError("max_new_tokens: got 3", setting="max_new_tokens")
NO_CALLS = SettingsError(
    "guided_structural_tag: JSON schema at a: keyword not", setting="guided_structural_tag"
)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
JSON_TEXT = {"format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("path", "fields", "error", "param", "said"),
    [
        (CHAT, {"lopa": {"steps": 8}}, NO_SUCH_STEPS, "lopa.steps", "unknown setting steps"),
        (
            TEXT,
            {"structured_outputs": {"regex": "a"}},
            TOO_SHORT,
            "structured_outputs.regex",
            "max_tokens is 8",
        ),
        (TEXT, {}, SettingsError("something else"), None, "something else"),
        (CHAT, {"tools": TOOLS, "guided_json": {}}, NO_CALLS, "tools", "keyword not"),
        (
            CHAT,
            {"tools": TOOLS, "structured_outputs": {"structural_tag": {}}},
            NO_CALLS,
            "structured_outputs.structural_tag",
            "keyword not",
        ),
        (RESPONSES, {}, TOO_LONG, "input", "lower max_output_tokens"),
        (RESPONSES, {"max_output_tokens": 8}, NO_ROOM, "max_output_tokens", "max_output_tokens: got 3"),
        (RESPONSES, {"text": JSON_TEXT}, TOO_SHORT, "text.format", "; max_output_tokens is 8"),
        (RESPONSES, {"lopa": {"steps": 8}}, NO_SUCH_STEPS, "lopa.steps", "unknown setting steps"),
    ],
)
def test_a_refusal_names_the_clients_field(
    server: Server,
    client: httpx.Client,
    path: str,
    fields: dict[str, Any],
    error: LopaError,
    param: str | None,
    said: str,
) -> None:
    server.backend.rejection = error
    base = {CHAT: {"messages": HI}, TEXT: {"prompt": "hi"}, RESPONSES: {"input": "hi"}}[path]
    for stream in (False, True):
        body = {"model": MODEL, **base, **fields, "stream": stream}
        detail = error_of(client.post(path, json=body), 400)
        assert detail.param == param
        assert said in detail.message
        assert not any(name in detail.message for name in ("max_new_tokens", "guided_structural_tag"))


def test_values_and_other_words_keep_their_names() -> None:
    error = SettingsError(
        "max_new_tokens: got 'max_new_tokens \"x\"' with this model's max_new_tokens; my_max_new_tokens"
    )
    fields = {"max_new_tokens": "max_tokens", "prompt": "messages", "got": "lopa.got"}
    said = "max_tokens: got 'max_new_tokens \"x\"' with this model's max_tokens; my_max_new_tokens"
    assert api_error(error, fields).message == said
    assert api_error(PromptError("the prompt is empty"), fields).message == "the prompt is empty"
