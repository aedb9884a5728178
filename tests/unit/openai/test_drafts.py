"""`draft`, and a first canvas in vLLM's words, over HTTP and in files, answered by an engine in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import parse_record
from lopa_ray.engine.local import LocalEngine
from support.fake_backend import CHAT, HI, MODEL, RESPONSES, TEXT, Server, error_of, serving
from support.local_backend import LocalBackend
from support.tiny_model import CANVAS_MODEL, tiny_engine

pytestmark = pytest.mark.medium

PROMPT = "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?"
EDITING = {"decoder": "editing", "block_size": 32}
RIGHT = "Now Tom gets 6*7=42 cards. So he gets 42-15=27 cards.\n#### 27"
DRAFT = RIGHT.replace("=42", "=47")


@pytest.fixture(scope="module")
def server(engine: LocalEngine) -> Iterator[Server]:
    with serving(LocalBackend(engine=engine)) as running:
        yield running


def post(client: httpx.Client, path: str = CHAT, **fields: Any) -> Any:
    response = client.post(path, json={"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_chat_revises_its_draft(client: httpx.Client, engine: LocalEngine) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 96, "lopa": EDITING}
    masks, revised = post(client, **body), post(client, **body, draft=DRAFT)
    assert engine.tokenizer is not None
    assert [one["choices"][0]["message"]["content"] for one in (masks, revised)] == [RIGHT, RIGHT]
    assert revised["lopa"]["steps"] * 2 < masks["lopa"]["steps"]
    ids = engine.tokenizer.encode_later_part(DRAFT, parse_special=False)
    assert post(client, **body, draft=ids)["lopa"]["steps"] == revised["lopa"]["steps"]
    result = engine.generate(PROMPT, EDITING, draft=DRAFT, max_new_tokens=96)
    assert (result.text, result.steps) == (RIGHT, revised["lopa"]["steps"])
    response = post(client, RESPONSES, input=PROMPT, draft=DRAFT, max_output_tokens=96, lopa=EDITING)
    assert response["output"][0]["content"][0]["text"] == RIGHT


def test_a_stream_sends_final_text_and_shows_the_draft(client: httpx.Client) -> None:
    lopa = {**EDITING, "block_size": 16, "stream_canvas": True}
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 96, "stream": True, "lopa": lopa}
    response = client.post(CHAT, json={"model": MODEL, **body, "draft": DRAFT})
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n")[:-2]]
    assert "".join(c["delta"].get("content") or "" for e in events for c in e["choices"]) == RIGHT
    canvases = [event["lopa"]["canvas"]["cells"] for event in events if not event["choices"]]
    first = canvases[0][: len(canvases[0]) - 16]
    assert "".join(cell["t"] for cell in first) and any(cell["s"] == 0 and cell["t"] for cell in first)


def test_a_pattern_keeps_the_part_of_a_draft_that_matches(engine: LocalEngine) -> None:
    regex = r"Now Tom gets 6\*7=\d+ cards\. So [a-z]+ gets 42-15=\d+ cards\.\n#### \d+"
    for settings in (EDITING, {"decoder": "multi_block", "editing_threshold": 0.5, "block_size": 8}):
        bound = engine.generate(PROMPT, settings, draft=DRAFT + "!", guided_regex=regex, max_new_tokens=96)
        assert bound.text == RIGHT
        other = engine.generate(
            PROMPT, settings, draft="Nothing of this matches.", guided_regex=regex, max_new_tokens=96
        )
        assert re.fullmatch(regex, str(other.text))


def test_given_parts_stay_next_to_a_draft(engine: LocalEngine) -> None:
    parts = [{"text": "Now Tom keeps"}]
    result = engine.generate(PROMPT, EDITING, draft=DRAFT, given_parts=parts, max_new_tokens=96)
    assert result.text is not None and result.text.startswith("Now Tom keeps ")
    hole = {"suffix": " cards.\n#### 27", "max_new_tokens": 20}
    revised = engine.generate(PROMPT, EDITING, draft="Now Tom gets 6*7=42", **hole)
    assert revised.steps < engine.generate(PROMPT, EDITING, **hole).steps


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        (TEXT, {"draft": "a", "lopa": {"decoder": "lopa"}}, "draft", "it never replaces a token"),
        (CHAT, {"draft": "a b c d e", "max_tokens": 2}, "draft", "leaves room for 2"),
        (CHAT, {"draft": [10**6]}, "draft", "which is no token"),
        (CHAT, {"draft": [1, "x"]}, "draft", "allowed: text, or a list of token ids"),
        (CHAT, {"draft": {"text": "x"}}, "draft", "allowed: text, or a list of token ids"),
        (CHAT, {"draft": "a", "logprobs": True}, "draft", "leave one out"),
        (TEXT, {"draft": "a", "suffix": "b", "max_tokens": 1, "prompt": ["a", "b"]}, None, None),
        (
            CHAT,
            {"vllm_xargs": {"diffusion_pinned": [1]}},
            "vllm_xargs.diffusion_pinned",
            "needs diffusion_seed",
        ),
        (CHAT, {"vllm_xargs": {"diffusion_max_steps": 1}}, "vllm_xargs.diffusion_max_steps", "renoising"),
        (
            CHAT,
            {"vllm_xargs": {"diffusion_seed_canvas": []}},
            "vllm_xargs.diffusion_seed_canvas",
            "at least 1",
        ),
        (CHAT, {"vllm_xargs": {"canvas": 1}}, "vllm_xargs.canvas", "no known field"),
        (
            CHAT,
            {"vllm_xargs": {"diffusion_seed_canvas": [5], "diffusion_pinned": [1]}},
            "vllm_xargs.diffusion_pinned",
            "got position 1",
        ),
        (
            CHAT,
            {"vllm_xargs": {"diffusion_seed_canvas": [5]}, "draft": "a"},
            "vllm_xargs.diffusion_seed_canvas",
            "excludes draft",
        ),
        (
            CHAT,
            {"vllm_xargs": {"diffusion_seed_canvas": [5], "diffusion_read_only": True}, "lopa": {}},
            "vllm_xargs.diffusion_read_only",
            "this model fills masks",
        ),
        (
            CHAT,
            {"vllm_xargs": {"diffusion_seed_canvas": [5, 6], "diffusion_pinned": [0]}, "logprobs": True},
            "vllm_xargs.diffusion_pinned",
            "needs diffusion_read_only",
        ),
    ],
)
def test_what_is_refused(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str | None, message: str | None
) -> None:
    ask = {"messages": HI} if path == CHAT else {"prompt": PROMPT}
    response = client.post(path, json={"model": MODEL, "lopa": EDITING, **ask, **fields})
    if param is None:
        assert response.status_code == 200, response.text
        return
    error = error_of(response, 400)
    assert error.param == param and message is not None and message in error.message


def test_lines_of_a_file_have_drafts(engine: LocalEngine) -> None:
    body = {"prompt": PROMPT, "draft": DRAFT, "lopa": EDITING, "max_tokens": 64}
    records = [
        {"prompt": PROMPT, "draft": DRAFT, "settings": {**EDITING, "max_new_tokens": 96}},
        {"prompt": PROMPT, "settings": {**EDITING, "max_new_tokens": 96, "draft": DRAFT}},
        {"prompt": PROMPT, "draft": 3, "settings": EDITING},
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body},
    ]
    rows = list(decode_lines(engine, [parse_record(*pair) for pair in enumerate(records, 1)], raw=False))
    first, second, third, fourth = rows
    assert first.row["text"] == second.row["text"] == RIGHT and first.row["steps"] == second.row["steps"]
    assert third.error.startswith("draft: got 3") or "draft" in third.error
    raw = engine.generate(PROMPT, EDITING, raw=True, draft=DRAFT, max_new_tokens=64)
    assert fourth.row["response"]["body"]["choices"][0]["text"] == raw.text


# vLLM's words, on a model whose canvases have 16 positions


@pytest.fixture(scope="module")
def canvas_engine(engine: LocalEngine) -> LocalEngine:
    canvases = tiny_engine(CANVAS_MODEL.name)
    canvases.tokenizer, canvases.constraints = engine.tokenizer, engine.constraints
    return canvases


@pytest.fixture(scope="module")
def canvas_client(canvas_engine: LocalEngine) -> Iterator[httpx.Client]:
    with (
        serving(LocalBackend(engine=canvas_engine)) as running,
        httpx.Client(base_url=running.url) as connected,
    ):
        yield connected


SEED = [20 + at for at in range(16)]
PINNED = [0, 1, 5, 15]


def test_a_first_canvas_in_vllms_words(canvas_client: httpx.Client, canvas_engine: LocalEngine) -> None:
    body = {"prompt": [5, 6, 7], "seed": 3, "max_tokens": 32, "ignore_eos": True}
    xargs = {"diffusion_seed_canvas": SEED, "diffusion_pinned": PINNED, "diffusion_max_steps": 4}
    answer = post(canvas_client, TEXT, **body, lopa={"decoder": "renoising"}, vllm_xargs=xargs)
    parts = [{"at": at, "token_ids": [SEED[at]]} for at in PINNED]
    values: dict[str, Any] = {"seed": 3, "max_new_tokens": 32, "ignore_eos": True, "decoder": "renoising"}
    values |= {"max_denoising_steps": 4, "draft": SEED, "given_parts": parts}
    result = canvas_engine.generate([[5, 6, 7]], values)[0]
    assert answer["choices"][0]["text"] == result.text
    assert [result.token_ids[at] for at in PINNED] == [SEED[at] for at in PINNED]
    free = canvas_engine.generate([[5, 6, 7]], {**values, "given_parts": []})[0]
    assert [free.token_ids[at] for at in PINNED] != [SEED[at] for at in PINNED]


@pytest.mark.parametrize(("steps", "read_only"), [(1, True), (3, 1)])
def test_a_read_is_one_canvas_with_log_probabilities(
    canvas_client: httpx.Client, canvas_engine: LocalEngine, steps: int, read_only: Any
) -> None:
    xargs = {"diffusion_seed_canvas": SEED, "diffusion_max_steps": steps, "diffusion_read_only": read_only}
    xargs |= {"diffusion_pinned": PINNED} if steps > 1 else {}
    body = {"prompt": [5, 6, 7], "seed": 3, "max_tokens": 99, "logprobs": 3, "vllm_xargs": xargs}
    answer = post(canvas_client, TEXT, **body)
    (choice,) = answer["choices"]
    logprobs = choice["logprobs"]
    assert len(logprobs["token_logprobs"]) == 16 and choice["finish_reason"] == "length"
    assert answer["lopa"]["steps"] == steps + 1  # the encoder has one
    held = PINNED if steps > 1 else []
    assert [at for at, tops in enumerate(logprobs["top_logprobs"]) if len(tops) < 3] == held
    assert all(logprobs["token_logprobs"][at] == 0.0 for at in held)
    short = post(canvas_client, TEXT, **{**body, "max_tokens": 9})
    assert short["choices"][0]["logprobs"]["tokens"] == logprobs["tokens"][:9]
