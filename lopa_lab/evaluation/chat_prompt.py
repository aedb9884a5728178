"""ChatPrompt: a chat that goes through lm-evaluation-harness, which passes prompts on as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from lopa_ray.text.chat_template import Message


class ChatPrompt(str):
    """The text that a chat template renders, for logs and caches, and the messages that it was rendered from.

    Tokens are made of the messages: in text, what a data set says could not be told from what the template writes.
    """

    messages: tuple[Message, ...]
    prefix: str
    """The beginning of the answer."""

    def __new__(cls, text: str, messages: Sequence[Message] = (), prefix: str = "") -> Self:
        """`text` is what is shown; `messages` end with the user's, and `prefix` begins the assistant's answer."""
        prompt = super().__new__(cls, text)
        prompt.messages, prompt.prefix = tuple(messages), prefix
        return prompt

    @classmethod
    def of_history(
        cls,
        history: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        render: Callable[[Sequence[Message]], str] = lambda messages: "",
    ) -> Self:
        """The chat that the harness hands to a chat template.

        Without a generation prompt its last message, the assistant's, is how the answer begins. `render` makes the text
        of the messages before it; without one the prompt shows no text of theirs.
        """
        messages, prefix = list(history), ""
        if not add_generation_prompt:
            prefix = messages.pop()["content"]
        return cls(render(messages) + prefix, messages, prefix)

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        # The harness copies requests, and keeps them in files.
        return (type(self), (str(self), self.messages, self.prefix))
