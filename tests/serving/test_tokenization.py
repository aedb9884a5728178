"""/tokenize says what the model gets."""

from __future__ import annotations

import httpx
import pytest

from support.client_request import PROMPT, ClientRequest

pytestmark = pytest.mark.medium

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
