"""One request, asked of a server over HTTP and of an engine in this process, in terms that can be compared."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from lopa_ray.config.config import Config
from lopa_ray.config.decoder_settings import merge_decoder_settings, parse_decoder_settings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.presets.word_problems import held_out_problems

QUESTIONS = [problem.question for problem in held_out_problems(seed=5, count=300)]
PROMPT = QUESTIONS[0]

OUTSIDE = {
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "seed": "seed",
    "min_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
}
"""Decode settings that requests name beside `lopa`, and how they name them there."""

SLOW = {"max_new_tokens": 300, "min_tokens": 300, "confidence_threshold": 1.0}
"""Hardly more than a token per step: some 300 steps."""


@dataclass(frozen=True)
class Response:
    """An answer: all of it must not depend on who gives it, and beside whom."""

    text: str
    tokens: tuple[tuple[str, bytes, float], ...]
    """Text, bytes and log-probability of each token."""
    finish_reason: str | None
    """None: the deadline came first."""
    steps: int
    forwards: int
    seconds: float = field(compare=False)
    """From arrival to the last step; this one may depend."""


@dataclass(frozen=True)
class Ask:
    """A chat of one message, and decode settings on top of the model's own."""

    prompt: str = PROMPT
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "demo"

    def body(self, **more: Any) -> dict[str, Any]:
        """What a client sends."""
        outside = {OUTSIDE[name]: value for name, value in self.settings.items() if name in OUTSIDE}
        inside = {name: value for name, value in self.settings.items() if name not in OUTSIDE}
        messages = [{"role": "user", "content": self.prompt}]
        lopa = {**inside, **more.pop("lopa", {})}
        return {"model": self.model, "messages": messages, "logprobs": True, "lopa": lopa, **outside, **more}

    def of_server(self, client: httpx.Client) -> Response:
        """Raises httpx.HTTPStatusError."""
        response = client.post("/v1/chat/completions", json=self.body())
        response.raise_for_status()
        return told(response.json()["choices"][0])

    def of_engine(self, engine: LocalEngine) -> Response:
        """Decoded alone, in this process."""
        values = engine.config.decode.model_dump(exclude_unset=True)
        settings = parse_decoder_settings(merge_decoder_settings(values, dict(self.settings)))
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
        return Response(
            result.text, tuple(tokens), result.finish_reason, result.steps, result.forwards, seconds
        )


def told(choice: Mapping[str, Any]) -> Response:
    """What a choice of a chat completion says."""
    tokens = [
        (token["token"], bytes(token["bytes"]), token["logprob"]) for token in choice["logprobs"]["content"]
    ]
    cost = choice["lopa"]
    return Response(
        choice["message"]["content"],
        tuple(tokens),
        choice["finish_reason"],
        cost["steps"],
        cost["forwards"],
        cost["seconds"],
    )


def ask_all(client: httpx.Client, asks: Sequence[Ask], concurrency: int) -> list[Response]:
    """The answers, in order."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda ask: ask.of_server(client), asks))


def random_asks(seed: int, count: int) -> list[Ask]:
    """Of the model `demo`, with every decoder."""
    rng = random.Random(seed)
    return [Ask(rng.choice(QUESTIONS), _random_settings(rng)) for _ in range(count)]


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
    if settings["decoder"] != "fast_dllm":
        settings["window_attention"] = rng.choice(["full", "block_causal"])
    if settings["decoder"] == "lopa":
        settings["num_branches"] = rng.randint(1, 6)
    return settings


def engine_of(entry: Mapping[str, Any]) -> LocalEngine:
    """An engine for a model as a Serve config lists it."""
    changes = {section: entry[section] for section in ("model", "group", "decode") if section in entry}
    return LocalEngine.from_config(Config.load("demo", changes))
