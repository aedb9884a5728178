"""What is done once per request, however many choices it has."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import ChoicesRequest
from lopa_ray.engine.compile_pool import Call, CompilePool
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.text.chat_template import ChatTemplate
from lopa_ray.text.tokenizer import Tokenizer
from support.tool_checkpoint import write_tool_checkpoint


@pytest.mark.parametrize("n", [1, 4])
def test_a_chat_is_rendered_and_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    write_tool_checkpoint(tmp_path)
    config = {"model": {"path": str(tmp_path), "max_model_len": 256}}
    engine = LocalEngine.from_config(Config.load("demo", config))
    calls: list[str] = []

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counting(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(name)
            return original(self, *args, **options)

        monkeypatch.setattr(owner, name, counting)

    count(ChatTemplate, "render")
    count(Tokenizer, "render_chat")
    count(Tokenizer, "encode_chat")
    chat = ({"role": "user", "content": "1 + 2"},)
    request = ChoicesRequest("id", (chat,), {"max_new_tokens": 8, "temperature": 1.0}, n=n)
    choices = ChoiceFactory(engine).create(request, 0.0)
    assert len(choices) == n
    assert sorted(calls) == ["encode_chat", "render", "render_chat"]
    assert all(choice.session.prompt == choices[0].session.prompt for choice in choices)


@pytest.mark.medium
def test_other_requests_go_on_while_a_prompt_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, went_on = threading.Event(), threading.Event()
    encode = Tokenizer.encode_chat

    def slow_encode(*arguments: Any) -> list[int]:
        encoding.set()
        assert went_on.wait(30), "the event loop waits for the tokenizer"
        return encode(*arguments)

    monkeypatch.setattr(Tokenizer, "encode_chat", slow_encode)

    async def run() -> None:
        request = ChoicesRequest("id", ("1 + 2",), {"max_new_tokens": 8})
        factory = ChoiceFactory(LocalEngine.from_pretrained("demo"))
        creating = asyncio.create_task(factory.create_in_background(request, 0.0))
        await asyncio.to_thread(encoding.wait)
        went_on.set()
        assert len(await creating) == 1

    asyncio.run(run())


PATTERN = "[ab]*a[ab]{24}"
STRICT = {"name": "add", "strict": True}
LOOSE = {"name": "sub", "parameters": {"type": "string", "pattern": PATTERN}}
TOOLS = tuple({"type": "function", "function": function} for function in (STRICT, LOOSE))


@pytest.mark.medium
@pytest.mark.parametrize(
    "request_",
    [ChoicesRequest("id", ("1",), {"guided_regex": PATTERN}), ChoicesRequest("id", ("1",), {}, tools=TOOLS)],
)
def test_what_is_compiled_for_a_request_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, request_: ChoicesRequest
) -> None:
    started: asyncio.Queue[Call] = asyncio.Queue()
    start = CompilePool.start

    def recorded(*arguments: Any) -> Call:
        started.put_nowait(call := start(*arguments))
        return call

    monkeypatch.setattr(CompilePool, "start", recorded)

    async def run() -> None:
        config = Config.load("demo", {"group": {"step_timeout_s": 9000.0}})
        factory = ChoiceFactory(LocalEngine.from_config(config))
        creating = asyncio.create_task(factory.create_in_background(request_, 0.0))
        call = await started.get()
        creating.cancel()
        await asyncio.wait([creating])
        assert call.cancelled

    asyncio.run(run())
