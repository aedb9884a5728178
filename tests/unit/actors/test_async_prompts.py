"""An asyncio program goes on while one of its prompts is encoded."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from actors.async_engine import AsyncRayEngine
from lopa_ray.engine.local import LocalEngine
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.text.tokenizer import Tokenizer

pytestmark = pytest.mark.medium


def test_a_long_prompt_does_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, went_on = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def slow_encode(*arguments: Any, **options: Any) -> list[int]:
        encoding.set()
        assert went_on.wait(30), "the event loop waits for the tokenizer"
        return encode(*arguments, **options)

    monkeypatch.setattr(Tokenizer, "encode", slow_encode)
    local = LocalEngine.from_pretrained("demo")
    # Without a group: nothing is decoded.
    engine = object.__new__(AsyncRayEngine)
    SessionFactory.__init__(engine, local.config, local.vocabulary, local.tokenizer)

    async def run() -> None:
        settings = local.config.decode.replace(max_new_tokens=0)
        generating = asyncio.create_task(engine.generate("Tom", settings, raw=True))
        await asyncio.to_thread(encoding.wait)
        went_on.set()
        assert (await generating).text == ""

    asyncio.run(run())
