"""A chat request, sent to a server over HTTP or decoded in this process; the responses can be compared."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from cluster.openai.generation_request import FIELDS_OF_SETTINGS
from lopa_lab.word_problems import held_out_problems
from lopa_ray.decoding.decoders import override_settings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine

CHAT = "/v1/chat/completions"

PROMPTS = [problem.question for problem in held_out_problems(seed=5, count=300)]
PROMPT = PROMPTS[0]

TOP_LEVEL_FIELDS = {"max_new_tokens": "max_tokens"} | {name: name for name in FIELDS_OF_SETTINGS}
"""Decode setting → the field of a request beside `lopa` that has it."""

SLOW = {"max_new_tokens": 300, "min_tokens": 300, "confidence_threshold": 1.0}
"""Hardly more than a token per step: some 300 steps."""


@dataclass(frozen=True)
class ClientResponse:
    """Everything but `seconds` must not depend on what decodes the request, and beside which others."""

    text: str
    tokens: tuple[tuple[str, bytes, float], ...]
    """Text, bytes and log-probability of each token."""
    finish_reason: str | None
    """None: the deadline came first."""
    steps: int
    forwards: int
    seconds: float = field(compare=False)
    """From arrival to the last step."""

    @classmethod
    def from_choice(cls, choice: Mapping[str, Any]) -> ClientResponse:
        """From a choice of a chat completion."""
        tokens = [
            (token["token"], bytes(token["bytes"]), token["logprob"])
            for token in choice["logprobs"]["content"]
        ]
        stats = choice["lopa"]
        return cls(
            choice["message"]["content"],
            tuple(tokens),
            choice["finish_reason"],
            stats["steps"],
            stats["forwards"],
            stats["seconds"],
        )


@dataclass(frozen=True)
class ClientRequest:
    """A chat of one message, and decode settings on top of the model's own."""

    prompt: str = PROMPT
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "demo"

    def body(self, **fields: Any) -> dict[str, Any]:
        """The JSON body; `fields` are added to it."""
        top_level = {
            TOP_LEVEL_FIELDS[name]: value for name, value in self.settings.items() if name in TOP_LEVEL_FIELDS
        }
        nested = {name: value for name, value in self.settings.items() if name not in TOP_LEVEL_FIELDS}
        messages = [{"role": "user", "content": self.prompt}]
        lopa = {**nested, **fields.pop("lopa", {})}
        return {
            "model": self.model,
            "messages": messages,
            "logprobs": True,
            "lopa": lopa,
            **top_level,
            **fields,
        }

    def send(self, client: httpx.Client) -> ClientResponse:
        """Raises httpx.HTTPStatusError."""
        response = client.post(CHAT, json=self.body())
        response.raise_for_status()
        return ClientResponse.from_choice(response.json()["choices"][0])

    def decode_locally(self, engine: LocalEngine) -> ClientResponse:
        """Decode it alone, in this process."""
        settings = override_settings(engine.config.decode, self.settings)
        session = engine.create_session([{"role": "user", "content": self.prompt}], settings)
        began = time.monotonic()
        ((_, result),) = engine.run([session], trace=True)
        if isinstance(result, Exception):
            raise result
        decisions = {decision.position: decision for step in result.trace for decision in step.decided}
        ids = result.token_ids
        eos = engine.vocabulary.eos_token_id
        length = ids.index(eos) if eos in ids and not settings.ignore_eos else len(ids)
        tokenizer = engine.tokenizer
        assert tokenizer is not None and result.text is not None
        tokens = [
            (tokenizer.token_text(token), tokenizer.token_bytes(token), decisions[position].logprob)
            for position, token in enumerate(ids[:length], start=result.prompt_tokens)
        ]
        seconds = time.monotonic() - began
        return ClientResponse(
            result.text, tuple(tokens), result.finish_reason, result.steps, result.forwards, seconds
        )


def check_answer(url: str, engine: LocalEngine) -> None:
    """A server without a key answers as the engine does. The shipped server has another lookahead by default."""
    lookahead = {"lookahead": "lopa", "num_branches": 3, "branch_budget": "fixed"}
    request = ClientRequest(settings={"max_new_tokens": 32, **lookahead})
    with httpx.Client(base_url=url, timeout=60) as client:
        assert request.send(client) == request.decode_locally(engine)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream before [DONE]."""
    for line in filter(None, lines):
        assert line.startswith("data: ")
        if line == "data: [DONE]":
            return
        yield json.loads(line.removeprefix("data: "))


def content(event: Mapping[str, Any]) -> str:
    """What an event of a stream adds to the text."""
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def send_all(
    client: httpx.Client, requests: Sequence[ClientRequest], concurrency: int
) -> list[ClientResponse]:
    """The responses, in order."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda request: request.send(client), requests))


def random_requests(seed: int, count: int) -> list[ClientRequest]:
    """Requests to the model `demo`, with every decoder."""
    rng = random.Random(seed)
    return [ClientRequest(rng.choice(PROMPTS), _random_settings(rng)) for _ in range(count)]


def _random_settings(rng: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "decoder": rng.choice(["lopa", "lopa", "d2f", "fast_dllm"]),
        "max_new_tokens": rng.randint(1, 96),
        "block_size": rng.choice([8, 16, 32]),
    }
    if rng.random() < 0.5:
        settings |= {"temperature": 0.8, "seed": rng.randrange(1000)}
    if rng.random() < 0.2:
        settings["ignore_eos"] = True
    if rng.random() < 0.3:
        settings |= {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -0.2}
        settings["logit_bias"] = {"40": 2.0, "50": -100}
    if settings["decoder"] != "fast_dllm":
        settings["window_attention"] = rng.choice(["full", "block_causal", "tiled"])
    if settings["decoder"] == "lopa":
        settings["num_branches"] = rng.randint(1, 6)
    return settings


def local_engine(entry: Mapping[str, Any]) -> LocalEngine:
    """An engine for a model as a Serve config lists it."""
    changes = {section: entry[section] for section in ("model", "group", "decode") if section in entry}
    return LocalEngine.from_config(Config.load("demo", changes))
