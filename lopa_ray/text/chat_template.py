"""Chat templates: messages in, text out, with the template's special tokens told from the user's text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken

from lopa_ray.errors import CheckpointError, PromptError

ROLES = ("system", "user", "assistant", "tool")

# Private-use characters stand in for characters of user text while a template renders.
_STAND_INS = range(0xF0000, 0xFFFFE)


class ChatTemplate:
    """The Jinja template of a checkpoint, rendered in a sandbox."""

    def __init__(self, source: str, where: Path, names: Mapping[str, str]) -> None:
        """`where` is named in errors; `names` are variables of the template (`bos_token` …)."""
        self._source, self._where, self._names = source, where, dict(names)

    def pieces(
        self, messages: Sequence[Mapping[str, str]], special: Sequence[AddedToken]
    ) -> list[tuple[str, str | None]]:
        """Runs of plain text, each with the special token that the template wrote behind it.

        The last run has None. Joined, they are the rendered text. Special tokens inside message
        content are part of the runs. Raises `PromptError` for messages that cannot be rendered,
        `CheckpointError` for a template that cannot be read.
        """
        if not messages:
            raise PromptError("got no chat messages; need one or more with role and content: add one")
        for message in messages:
            _check_message(message)
        texts = [message["content"] for message in messages]
        shield = _Shield((token.content for token in special), (self._source, *texts))
        rendered = self._render(
            [{"role": m["role"], "content": shield.cover(m["content"])} for m in messages]
        )
        runs: list[tuple[str, str | None]] = []
        end = 0
        for found in _markers(special).finditer(rendered):
            runs.append((shield.uncover(rendered[end : found.start()]), found[found.lastindex or 0]))
            end = found.end()
        return [*runs, (shield.uncover(rendered[end:]), None)]

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            template = _compile(self._source)
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"{self._where}: the chat template is not valid Jinja ({error}); "
                f"correct it, or send plain text"
            ) from None
        try:
            return template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._names
            )
        except Exception as error:  # a template may fail in any way that an expression can
            raise PromptError(
                f"the checkpoint's chat template does not accept these messages ({error}); "
                f"change their roles or order, or send plain text"
            ) from None


class _Shield:
    """Keeps special tokens from appearing in user text while a template renders it.

    One character of each is swapped for a private-use character that nothing else uses, so the
    template can still test, strip and split the text; `uncover` swaps them back. A text that begins
    or ends within a special token is covered too, lest the template's own text complete it.
    """

    def __init__(self, special: Iterable[str], texts: Iterable[str]) -> None:
        tokens = tuple(special)
        heads = {token[:i] for token in tokens for i in range(1, len(token))}
        tails = {token[i:] for token in tokens for i in range(1, len(token))}
        self._whole, self._head, self._tail = (_any_of(words) for words in (tokens, heads, tails))
        used = set("".join(texts))
        self._free = (chr(code) for code in _STAND_INS if chr(code) not in used)
        self._stand_ins: dict[str, str] = {}

    def cover(self, text: str) -> str:
        before = None
        while before != text:  # what is left of one token may hold a shorter one
            before, text = text, re.sub(self._whole, lambda m: self._swap(m[0][0]) + m[0][1:], text)
        text = re.sub(rf"\A(\s*)({self._tail})", lambda m: m[1] + self._swap(m[2][0]) + m[2][1:], text)
        return re.sub(rf"({self._head})(\s*)\Z", lambda m: m[1][:-1] + self._swap(m[1][-1]) + m[2], text)

    def uncover(self, text: str) -> str:
        return text.translate({ord(stand_in): char for char, stand_in in self._stand_ins.items()})

    def _swap(self, char: str) -> str:
        if char not in self._stand_ins:
            self._stand_ins[char] = next(self._free)
        return self._stand_ins[char]


def _any_of(words: Iterable[str]) -> str:
    """A pattern of the longest of `words`; one that never matches if there are none."""
    ordered = sorted(words, key=lambda word: (-len(word), word))
    return "|".join(map(re.escape, ordered)) or r"(?!)"


def _markers(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """Matches special tokens in rendered text, with the space that `lstrip` and `rstrip` swallow."""
    ordered = sorted(tokens, key=lambda token: len(token.content), reverse=True)
    space = {True: r"\s*", False: ""}
    patterns = (
        f"{space[token.lstrip]}({re.escape(token.content)}){space[token.rstrip]}" for token in ordered
    )
    return re.compile("|".join(patterns) or r"(?!)")


def _check_message(message: object) -> None:
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        raise PromptError(f"got the chat message {message!r}; need an object with role and content alone")
    role, content = message["role"], message["content"]
    if role not in ROLES or not isinstance(content, str):
        raise PromptError(
            f"got a chat message with role {role!r} and content of type {type(content).__name__}; "
            f"allowed are the roles {', '.join(ROLES)} and text: change it"
        )


@lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        # Jinja's own filter escapes HTML.
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = tojson
    return environment.from_string(source)
