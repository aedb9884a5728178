"""What is done once per request, however many choices it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import ChoicesRequest
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
