"""/tokenize and /detokenize say what the model gets."""

from __future__ import annotations

import httpx

from lopa_ray.engine.local import LocalEngine
from support.client_request import PROMPT, ClientRequest

MESSAGES = [
    {"role": "system", "content": "Answer in one line. <|im_end|>"},
    {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
]


def test_a_chats_tokens_are_its_prompt(client: httpx.Client) -> None:
    body = ClientRequest(settings={"max_new_tokens": 8}).body(messages=MESSAGES)
    usage = client.post("/v1/chat/completions", json=body).raise_for_status().json()["usage"]
    tokenized = (
        client.post("/tokenize", json={"model": "demo", "messages": MESSAGES}).raise_for_status().json()
    )
    assert tokenized["count"] == len(tokenized["tokens"]) == usage["prompt_tokens"]


def test_text_to_tokens_and_back(client: httpx.Client, engines: dict[str, LocalEngine]) -> None:
    body = {"model": "demo-d2f", "prompt": PROMPT, "return_token_strs": True}
    tokenized = client.post("/tokenize", json=body).raise_for_status().json()
    engine = engines["demo-d2f"]
    assert tokenized["tokens"] == engine.encode(PROMPT, raw=True)
    assert tokenized["max_model_len"] == engine.config.model.max_model_len
    assert "".join(tokenized["token_strs"]).replace("Ġ", " ") == PROMPT
    text = client.post("/detokenize", json={"model": "demo-d2f", "tokens": tokenized["tokens"]})
    assert text.json() == {"prompt": PROMPT}


def test_what_the_model_cannot_read(client: httpx.Client) -> None:
    outside = client.post("/detokenize", json={"model": "demo", "tokens": [1, 10**6]})
    error = outside.json()["error"]
    assert (outside.status_code, error["code"], error["param"]) == (400, "invalid_prompt", "tokens")
    assert "token 1 is 1000000" in error["message"]
