"""EncodedInput: the tokens of an input, and of the questions after it. Both are encoded apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from lopa_ray.decisions.questions import field_error
from lopa_ray.decoding.question_tokens import QuestionTokens
from lopa_ray.errors import PromptError, PromptTooLongError
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.chat_message import read_messages
from lopa_ray.text.chat_template import GENERATION_PROMPT, Message
from lopa_ray.text.decision_prompt import DecisionQuestion
from lopa_ray.text.rendered_chat import RenderedChat
from lopa_ray.text.tokenizer import Tokenizer

DecisionInput: TypeAlias = str | Sequence[Message]  # a text, or the messages of a chat

QUESTION = "THE-QUESTION"
"""Placeholder for the question in a template; zeros are appended until the input does not contain it."""

NO_REASONING = {"enable_thinking": False}  # the answer begins at once, where a template can say so


class EncodedInput:
    """An input's tokens, up to a token boundary between it and its questions. With a chat template a question is one
    more message of the user's, or the last paragraph of that message where the template takes no two of these in a row.
    Without a template the messages are paragraphs."""

    def __init__(self, tokenizer: Tokenizer, given: DecisionInput, vocabulary: Vocabulary) -> None:
        """Raises PromptError for messages that cannot be rendered or encoded, or have the mask token in them."""
        self._tokenizer, self._eos = tokenizer, vocabulary.eos_token_id
        self._mask = tokenizer.token_text(vocabulary.mask_token_id)
        messages = read_messages([{"role": "user", "content": given}] if isinstance(given, str) else given)
        for index, message in enumerate(messages):
            field = "input" if isinstance(given, str) else f"input[{index}].content"
            self._check_text(field, message["content"])
        self._placeholder = QUESTION
        while any(self._placeholder in message["content"] for message in messages):
            self._placeholder += "0"
        if tokenizer.has_chat_template:
            rendered, self._asked = self._split(messages)
            self.ids = tokenizer.encode_chat(rendered)
        else:
            text = "\n\n".join(message["content"] for message in messages)
            self.ids = tokenizer.encode(text)
            self._asked = RenderedChat(((f"\n\n{self._placeholder}\nAnswer:", None),))

    def question(self, field: str, question: DecisionQuestion, max_model_len: int) -> QuestionTokens:
        """Raises PromptError, which names the field, for the mask token, and PromptTooLongError."""
        self._check_text(field, question.message)
        asked = self._encode(self._asked.replaced(self._placeholder, question.message))
        space = "" if self._tokenizer.has_chat_template else " "
        labels = [self._encode(RenderedChat(((space + label, None),))) for label in question.labels]
        tokens = QuestionTokens.of(asked, labels, self._eos)
        if len(self.ids) + tokens.length > max_model_len:
            too_long = PromptTooLongError(
                f"{field}: an input of {len(self.ids)} tokens and a question with its answer of {tokens.length} "
                f"exceed max_model_len {max_model_len}; shorten them or raise max_model_len"
            )
            too_long.setting = field if tokens.length > len(self.ids) else "input"
            raise too_long
        return tokens

    def _check_text(self, field: str, text: str) -> None:
        if self._mask in text:
            what = f"got text with the mask token {self._mask}, which stands for an empty position; remove it"
            raise field_error(field, what)

    def _encode(self, chat: RenderedChat) -> list[int]:
        return self._tokenizer.encode_chat(chat, continues=True)

    def _split(self, messages: Sequence[Message]) -> tuple[RenderedChat, RenderedChat]:
        """The input, and the question's message with the placeholder in it."""
        render: Callable[..., RenderedChat] = self._tokenizer.render_chat
        asked = {"role": "user", "content": self._placeholder}
        try:
            whole = render([*messages, asked], variables=NO_REASONING)
            given = render(messages, variables={**NO_REASONING, GENERATION_PROMPT: False})
            if (behind := whole.behind(given)) is not None:
                return given, behind
        except PromptError:
            if not messages or messages[-1].get("role") != "user":
                raise
            paragraphs = f"{messages[-1]['content']}\n\n{self._placeholder}"
            whole = render([*messages[:-1], {"role": "user", "content": paragraphs}], variables=NO_REASONING)
        return whole.cut_before(self._placeholder)
