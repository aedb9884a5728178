"""Requests of measurements: prompts as token ids that fit, answers or the errors in their place, the end of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import SettingsError
from lopa_ray.text.chat_template import Message
from lopa_ray.text.tokenizer import require_tokenizer

Answer = TypeVar("Answer")


def encode_prompt(
    factory: SessionFactory, prompt: str | Sequence[Message], prefix: str = "", *, parse_special: bool = True
) -> list[int]:
    """Encode text as it is; a chat by the checkpoint's template, then `prefix`, with which the answer begins.

    In text special tokens are recognised unless `parse_special` is false, as transformers' tokenizers do; in chats and
    prefixes they never are.
    """
    if isinstance(prompt, str):
        return factory.encode(prompt, raw=True, parse_special=parse_special)
    ids = factory.encode(prompt)
    return (
        ids + require_tokenizer(factory.tokenizer).encode(prefix, add_special_tokens=False) if prefix else ids
    )


def fitting_prompt(factory: SessionFactory, ids: list[int], max_new_tokens: int) -> list[int]:
    """The end of a prompt, as much as there is room for before an answer of so many tokens.

    Raises SettingsError where there is none.
    """
    max_model_len = factory.config.model.max_model_len
    if max_new_tokens >= max_model_len:
        raise SettingsError(
            f"max_new_tokens: got {max_new_tokens}, which leaves no room for a prompt in model.max_model_len "
            f"{max_model_len}; lower the one or raise the other"
        )
    return ids[max_new_tokens - max_model_len :]


def answered(answers: Iterable[tuple[int, Answer | Exception]]) -> Iterator[tuple[int, Answer]]:
    """(index, answer) as requests end. Raises the first error that stands in the place of an answer."""
    for index, answer in answers:
        if isinstance(answer, Exception):
            raise answer
        yield index, answer


def cut_at_stop(text: str, stop: Iterable[str]) -> str:
    """`text` without the first of the texts `stop` that it has, and without what follows it."""
    return text[: min((at for string in stop if (at := text.find(string)) >= 0), default=len(text))]
