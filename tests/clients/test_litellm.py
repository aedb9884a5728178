"""LiteLLM's proxy in front of a server, with the config that ships: OpenAI's API, Anthropic's, and a limit. Its
providers for Mercury's API, which ask the server itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lopa_lab.word_problems import Problem, is_correct
from support.paths import ROOT
from support.ports import free_port
from support.server_process import ServerProcess
from support.waiting import wait_until

anthropic = pytest.importorskip("anthropic")
litellm = pytest.importorskip("litellm")

import openai

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

KEY = "sk-of-the-gateway-40c7"
SHIPPED = ROOT / "cluster" / "deploy" / "litellm.yaml"
START_TIMEOUT_S = 600.0
"""It imports for some 20 seconds on two free cores."""

REQUESTS = 4
"""Requests per minute that the gateway of the tests takes for the model `limited`."""


@pytest.fixture(scope="module")
def gateway(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a proxy, whose config is the one that ships but for the server's port, with one model more."""
    folder, port = tmp_path_factory.mktemp("gateway"), free_port()
    values = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    (model,) = values["model_list"]
    model["litellm_params"]["api_base"] = f"{server.url}/v1"
    limited = {"model_name": "limited", "litellm_params": {**model["litellm_params"], "rpm": REQUESTS}}
    values["model_list"].append(limited)
    (folder / "litellm.yaml").write_text(yaml.safe_dump(values))
    keys = {"LITELLM_MASTER_KEY": KEY, "LOPA_API_KEY": server.api_key}
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    options = f"--config litellm.yaml --host 127.0.0.1 --port {port} --telemetry False".split()
    with (folder / "log").open("wb") as log:
        proxy = subprocess.Popen(
            [Path(sys.executable).with_name("litellm"), *options],
            cwd=folder,
            env={**os.environ, **keys, **offline},
            stdout=log,
            stderr=log,
        )

    def listens() -> bool:
        assert proxy.poll() is None, (folder / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, "the proxy to listen", START_TIMEOUT_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        proxy.kill()
        proxy.wait(30)


@pytest.fixture
def ai(gateway: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway}/v1", api_key=KEY, max_retries=0)


@pytest.fixture
def messages_api(gateway: str) -> Any:
    return anthropic.Anthropic(base_url=gateway, api_key=KEY, max_retries=0)


def asked(problem: Problem) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": problem.question}], "max_tokens": 64}


def test_openais_client(ai: openai.OpenAI, problems: list[Problem]) -> None:
    answer = ai.chat.completions.create(**asked(problems[0]))
    text = answer.choices[0].message.content
    assert is_correct(problems[0], text)
    assert answer.usage.completion_tokens > 0
    chunks = ai.chat.completions.create(**asked(problems[0]), stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len(pieces) > 1 and "".join(pieces) == text


def test_fields_of_this_project_pass_through(ai: openai.OpenAI, problems: list[Problem]) -> None:
    lopa = {"num_branches": 1, "lookahead": "lopa"}
    answer = ai.chat.completions.create(**asked(problems[0]), extra_body={"lopa": lopa})
    assert answer.lopa["forwards"] == answer.lopa["steps"]  # one branch in each


def test_anthropics_client(messages_api: Any, problems: list[Problem]) -> None:
    answer = messages_api.messages.create(**asked(problems[0]))
    (block,) = answer.content
    assert is_correct(problems[0], block.text)
    assert (answer.role, answer.stop_reason) == ("assistant", "end_turn")
    assert answer.usage.input_tokens > 0 < answer.usage.output_tokens
    with messages_api.messages.stream(**asked(problems[0])) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1 and "".join(pieces) == block.text
    assert final.stop_reason == "end_turn"


def test_the_gateway_limits_requests(ai: openai.OpenAI, messages_api: Any, problems: list[Problem]) -> None:
    body = {**asked(problems[0]), "model": "limited", "max_tokens": 4}
    for _ in range(REQUESTS):
        ai.chat.completions.create(**body)
    with pytest.raises(openai.RateLimitError):
        ai.chat.completions.create(**body)
    with pytest.raises(anthropic.RateLimitError):
        messages_api.messages.create(**body)


def test_the_provider_of_mercurys_chats(server: ServerProcess, problems: list[Problem]) -> None:
    asks = asked(problems[0]) | {"model": "inception/demo", "reasoning_effort": "instant"}
    asks |= {"api_base": f"{server.url}/v1", "api_key": server.api_key}
    text = litellm.completion(**asks).choices[0].message.content
    assert is_correct(problems[0], text)
    chunks = litellm.completion(**asks, stream=True, diffusing=True)
    texts = [chunk.choices[0].delta.content for chunk in chunks]
    shown = [one for one in texts if one]
    assert len(shown) > 1 and shown[-1] == text and "".join(shown) != text


def test_the_provider_of_mercurys_fill_in_the_middle(server: ServerProcess) -> None:
    asks = {
        "model": "text-completion-inception/demo",
        "prompt": "Mia has 7 pens. She buys 8 pens.",
        "suffix": "15 pens.",
        "max_tokens": 8,
        "api_base": f"{server.url}/v1",
        "api_key": server.api_key,
    }
    text = litellm.text_completion(**asks).choices[0].text
    ours = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.api_key)
    given = {name: asks[name] for name in ("prompt", "suffix", "max_tokens")}
    assert text == ours.completions.create(model="demo", **given).choices[0].text
    pieces = [chunk.choices[0].text or "" for chunk in litellm.text_completion(**asks, stream=True)]
    assert "".join(pieces) == text


def test_errors(ai: openai.OpenAI, problems: list[Problem]) -> None:
    with pytest.raises(
        openai.BadRequestError, match="No connected db"
    ):  # keys but the first are in a database
        ai.with_options(api_key="sk-unknown").models.list()
    with pytest.raises(openai.BadRequestError, match="max_model_len"):
        ai.chat.completions.create(**{**asked(problems[0]), "max_tokens": 100_000})
