"""Chat templates: messages in, text out, with the template's special tokens apart from the user's text."""

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

# Private-use characters that replace characters of user text while a template renders it.
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)


class ChatTemplate:
    """The Jinja template of a checkpoint, rendered in a sandbox."""

    def __init__(self, source: str, where: Path, variables: Mapping[str, str]) -> None:
        """`where` is named in errors; `variables` are variables of the template (`bos_token` …)."""
        self._source, self._where, self._variables = source, where, dict(variables)

    def render(
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
        escaper = _SpecialTokenEscaper((token.content for token in special), (self._source, *texts))
        rendered = self._render_template(
            [{"role": m["role"], "content": escaper.escape(m["content"])} for m in messages]
        )
        runs: list[tuple[str, str | None]] = []
        end = 0
        for found in _special_token_pattern(special).finditer(rendered):
            runs.append((escaper.unescape(rendered[end : found.start()]), found[found.lastindex or 0]))
            end = found.end()
        return [*runs, (escaper.unescape(rendered[end:]), None)]

    def _render_template(self, messages: list[dict[str, str]]) -> str:
        try:
            template = _compile(self._source)
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"{self._where}: the chat template is not valid Jinja ({error}); "
                f"correct it, or send plain text"
            ) from None
        try:
            return template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._variables
            )
        except Exception as error:  # a template may fail in any way that an expression can
            raise PromptError(
                f"the checkpoint's chat template does not accept these messages ({error}); "
                f"change their roles or order, or send plain text"
            ) from None


class _SpecialTokenEscaper:
    """Keeps special tokens from appearing in user text while a template renders it.

    One character of each is swapped for a private-use character that nothing else uses, so the
    template can still test, strip and split the text; `unescape` swaps them back. A text that begins
    or ends within a special token is escaped too, since the template's own text may complete it.
    """

    def __init__(self, special: Iterable[str], texts: Iterable[str]) -> None:
        tokens = tuple(special)
        prefixes = {token[:i] for token in tokens for i in range(1, len(token))}
        suffixes = {token[i:] for token in tokens for i in range(1, len(token))}
        self._token, self._prefix, self._suffix = (
            _alternation(strings) for strings in (tokens, prefixes, suffixes)
        )
        used = set("".join(texts))
        self._unused = (chr(code) for code in _PLACEHOLDERS if chr(code) not in used)
        self._placeholders: dict[str, str] = {}

    def escape(self, text: str) -> str:
        before = None
        while before != text:  # what is left of one token may hold a shorter one
            before, text = text, re.sub(self._token, lambda m: self._placeholder_of(m[0][0]) + m[0][1:], text)
        text = re.sub(
            rf"\A(\s*)({self._suffix})", lambda m: m[1] + self._placeholder_of(m[2][0]) + m[2][1:], text
        )
        return re.sub(
            rf"({self._prefix})(\s*)\Z", lambda m: m[1][:-1] + self._placeholder_of(m[1][-1]) + m[2], text
        )

    def unescape(self, text: str) -> str:
        return text.translate({ord(placeholder): char for char, placeholder in self._placeholders.items()})

    def _placeholder_of(self, char: str) -> str:
        if char not in self._placeholders:
            self._placeholders[char] = next(self._unused)
        return self._placeholders[char]


def _alternation(strings: Iterable[str]) -> str:
    """A pattern that matches the longest of `strings`; one that never matches if there are none."""
    ordered = sorted(strings, key=lambda string: (-len(string), string))
    return "|".join(map(re.escape, ordered)) or r"(?!)"


def _special_token_pattern(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """Matches special tokens in rendered text, with the space that `lstrip` and `rstrip` remove."""
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
