"""EncodedInput: the tokens of an input, and of the questions behind it. Both are encoded apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lopa_ray.errors import PromptError
from lopa_ray.text.chat_template import GENERATION_PROMPT, Message
from lopa_ray.text.rendered_chat import RenderedChat
from lopa_ray.text.tokenizer import Tokenizer

QUESTION = "THE-QUESTION"
"""Stands for a question while the template is rendered, and gets zeros until the input does not have it."""

NO_REASONING = {"enable_thinking": False}
"""The answer begins at once, where a template can say so."""


class EncodedInput:
    """An input's tokens, up to a token boundary between it and its questions.

    With a chat template a question is one more message of the user's, or the last paragraph of that message where the
    template takes no two of these in a row. Without a template the messages are paragraphs.
    """

    def __init__(self, tokenizer: Tokenizer, messages: Sequence[Message]) -> None:
        """`messages`: from `read_messages`. Raises PromptError for messages that cannot be rendered or encoded."""
        self._tokenizer = tokenizer
        self._mark = QUESTION
        while any(self._mark in message["content"] for message in messages):
            self._mark += "0"
        if tokenizer.has_chat_template:
            given, self._asked = self._split(messages)
            self.ids = tokenizer.encode_chat(given)
        else:
            text = "\n\n".join(message["content"] for message in messages)
            self.ids = tokenizer.encode(text)
            self._asked = RenderedChat(((f"\n\n{self._mark}\nAnswer:", None),))

    def question_ids(self, message: str) -> tuple[int, ...]:
        """What stands between the input and the answer."""
        return self._encode(self._asked.replaced(self._mark, message))

    def label_ids(self, label: str) -> tuple[int, ...]:
        text = label if self._tokenizer.has_chat_template else f" {label}"
        return self._encode(RenderedChat(((text, None),)))

    def _encode(self, chat: RenderedChat) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_chat(chat, continues=True))

    def _split(self, messages: Sequence[Message]) -> tuple[RenderedChat, RenderedChat]:
        """The input, and what follows it with the mark in it."""
        render: Callable[..., RenderedChat] = self._tokenizer.render_chat
        asked = {"role": "user", "content": self._mark}
        try:
            whole = render([*messages, asked], variables=NO_REASONING)
            given = render(messages, variables={**NO_REASONING, GENERATION_PROMPT: False})
            if (behind := whole.behind(given)) is not None:
                return given, behind
        except PromptError:
            if not messages or messages[-1].get("role") != "user":
                raise
            paragraphs = f"{messages[-1]['content']}\n\n{self._mark}"
            whole = render([*messages[:-1], {"role": "user", "content": paragraphs}], variables=NO_REASONING)
        return whole.cut_before(self._mark)
