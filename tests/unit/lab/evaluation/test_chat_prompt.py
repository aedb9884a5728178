"""Chats as the harness hands them to a chat template."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from lopa_lab.evaluation.chat_prompt import ChatPrompt
from lopa_ray.text.chat_template import Message

ASKED = ({"role": "user", "content": "1 + 1?"},)
BEGUN = (*ASKED, {"role": "assistant", "content": "It is "})


def render(messages: Sequence[Message]) -> str:
    return "".join(f"[{message['content']}]" for message in messages)


def test_a_history_is_asked_as_it_is_or_with_the_answer_begun() -> None:
    asked = ChatPrompt.of_history(ASKED, render=render)
    assert (asked, asked.messages, asked.prefix) == ("[1 + 1?]", ASKED, "")
    begun = ChatPrompt.of_history(BEGUN, False, render=render)
    assert (begun, begun.messages, begun.prefix) == ("[1 + 1?]It is ", ASKED, "It is ")
    copy = pickle.loads(pickle.dumps(begun))
    assert (copy, copy.messages, copy.prefix) == (begun, ASKED, "It is ")
    assert ChatPrompt.of_history(ASKED) == ""
