"""What a model refuses: status, field and message, in the names of the request that asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.fake_backend import CHAT, HI, MODEL, TEXT, Server, error_of, serving
from support.local_backend import LocalBackend
from support.tool_checkpoint import write_tool_checkpoint

pytestmark = pytest.mark.medium

MAX_MODEL_LEN = 128
SCHEMA = {"type": "object", "properties": {"a": {"not": {}}}}
NO_SCHEMA = "JSON schema at a.not: not: it is supported with simple schemas only"
NO_PATTERN = "got the pattern '(max_new_tokens', which cannot be used"
TOO_LONG = "the shortest answer that matches the pattern or schema has 20 tokens; {limit} is 3: raise it"
NO_TOKEN = "got {token}, which is never generated; allowed: ids 0 to"
FIT = " exceed max_model_len 128; shorten the prompt, lower {limit} or raise max_model_len"

ON_BOTH: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 500}, "{prompt}", " prompt tokens and max_tokens 500" + FIT),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "min_tokens (9) exceeds max_tokens (8); lower it"),
    ({"logit_bias": {"500": 1}}, "logit_bias", "logit_bias: " + NO_TOKEN.format(token="token 500")),
    ({"bad_words": [" "]}, "bad_words", "bad_words: got a word without characters; leave it out"),
    (
        {"lopa": {"decoder": "max_new_tokens"}},
        "lopa.decoder",
        "decoder: got 'max_new_tokens'; allowed: lopa,",
    ),
    (
        {"lopa": {"block_size": 0}},
        "lopa.block_size",
        "block_size: got 0; allowed: greater than or equal to 1 (Positions per block; the last block is cut to fit "
        "`max_tokens`. ",
    ),
    ({"guided_regex": "(max_new_tokens"}, "guided_regex", NO_PATTERN),
    ({"guided_regex": "a{20}", "max_tokens": 3}, "guided_regex", TOO_LONG),
    (
        {"guided_choice": ["a"], "bad_words": ["a"]},
        "guided_choice",
        "the pattern or schema matches no text that this model's tokens can spell without bad_words; loosen it",
    ),
    (
        {"structured_outputs": {"choice": ["a"]}, "ignore_eos": True},
        "ignore_eos",
        "ignore_eos: got true with a pattern or schema (choice), whose answers end where the match does",
    ),
    ({"guided_json": SCHEMA}, "guided_json", NO_SCHEMA),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        "response_format",
        NO_SCHEMA,
    ),
    ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", NO_SCHEMA),
    (
        {"structured_outputs": {"structural_tag": {}}},
        "structured_outputs.structural_tag",
        "structural_tag: got an invalid structural tag (structures: Field required)",
    ),
]
NO_ROOM = " prompt tokens leave no room for an answer: prompt and answer together may have 128 tokens"
FUNCTION = {"name": "f", "strict": True, "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
OTHER_TOOLS = [{"type": "function", "function": {"name": "f"}}]
OWN: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"messages": [{"role": "user", "content": "x" * 200}]}, "messages", NO_ROOM),
    (CHAT, {"max_completion_tokens": 500}, "messages", " prompt tokens and max_completion_tokens 500" + FIT),
    (CHAT, {"guided_regex": "a{20}", "max_completion_tokens": 3}, "guided_regex", TOO_LONG),
    (CHAT, {"tools": TOOLS, "tool_choice": "required"}, "tools", NO_SCHEMA),
    (CHAT, {"tools": OTHER_TOOLS, "tool_choice": "required", "max_tokens": 1}, "tools", "max_tokens is 1"),
    (CHAT, {"tools": OTHER_TOOLS, "guided_json": SCHEMA}, "guided_json", NO_SCHEMA),
    (TEXT, {"prompt": "x" * 200}, "prompt", NO_ROOM),
    (TEXT, {"prompt": ""}, "prompt", "the prompt is empty; give at least one token"),
    (TEXT, {"prompt": ["a", "<|mask|>"]}, "prompt", "set parse_special to false"),
    (TEXT, {"prompt": [500]}, "prompt", "prompt token 0 is 500, but the vocabulary has ids 0 to"),
]


GEMMA_TEMPLATE = "{{ tools and '' }}{{ messages[0]['content'] }}{# <|tool_call> #}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # A template without the description of tools, so that they fit.
    with serving_template(
        tmp_path_factory.mktemp("model"), "{{ tools and '' }}{{ messages[0]['content'] }}"
    ) as running:
        yield running


@contextmanager
def serving_template(folder: Path, template: str) -> Iterator[Server]:
    write_tool_checkpoint(folder, template=template)
    model = {"path": str(folder), "max_model_len": MAX_MODEL_LEN}
    config = Config.load("demo", {"model": model, "decode": {"max_new_tokens": 16, "num_branches": 2}})
    with serving(LocalBackend(engine=LocalEngine.from_config(config))) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [*((path, *case) for path in (CHAT, TEXT) for case in ON_BOTH), *OWN],
)
def test_a_refusal_names_the_field_that_the_client_wrote(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str, said: str
) -> None:
    prompt = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    response = client.post(path, json={"model": MODEL, **prompt, **fields})
    error = error_of(response, 400)
    assert error.param == param.format(prompt=next(iter(prompt)))
    limit = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    assert said.replace("{limit}", limit) in error.message
    # A decode setting's name is in the message where the client wrote it, and nowhere else.
    assert ("max_new_tokens" in error.message) == ("max_new_tokens" in str(fields))


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"tools": TOOLS}, {"guided_json": "{}"}])
def test_calls_without_json_are_refused_where_they_have_to_match(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    with serving_template(tmp_path, GEMMA_TEMPLATE) as server:
        request = {"model": MODEL, "messages": HI, "tools": OTHER_TOOLS, **fields}
        error = error_of(httpx.post(server.url + CHAT, json=request, timeout=60), 400)
    assert error.param == "tools"
    assert error.message.startswith("tools: this model does not write the arguments of a call as JSON")
