"""Chat templates: messages in, text out, with the template's special tokens apart from the user's text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import jinja2
import jinja2.meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken

from lopa_ray.errors import CheckpointError, PromptError

ROLES = ("system", "user", "assistant", "tool")
OPTIONAL_KEYS = {"reasoning_content": str, "tool_calls": Sequence, "tool_call_id": str, "name": str}
"""What a message may have beside role and content, which all have."""

Message: TypeAlias = Mapping[str, Any]
"""Role and content, both text; of `OPTIONAL_KEYS` what there is. Tool calls are those of OpenAI's API, but that their
arguments are objects."""

# Private-use characters that replace characters of user text while a template renders it.
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)


class ChatTemplate:
    """The Jinja template of a checkpoint, rendered in a sandbox."""

    def __init__(self, source: str, where: Path, variables: Mapping[str, str]) -> None:
        """`where` is named in errors; `variables` are variables of the template (`bos_token` …)."""
        self._source, self._where, self._variables = source, where, dict(variables)

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template writes tools. Raises `CheckpointError` for one that cannot be read."""
        try:
            syntax_tree = _environment().parse(self._source)
        except jinja2.TemplateError as error:
            raise self._invalid(error) from None
        return "tools" in jinja2.meta.find_undeclared_variables(syntax_tree)

    def mentions(self, text: str) -> bool:
        """Whether `text` stands in the template itself."""
        return text in self._source

    def render(
        self,
        messages: Sequence[Message],
        special: Sequence[AddedToken],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> list[tuple[str, str | None]]:
        """Runs of plain text, each with the special token that the template wrote behind it.

        The last run has None. Joined, they are the rendered text. Special tokens inside messages, `tools` and
        `variables` (further ones of the template) are part of the runs. Raises `PromptError` for messages that cannot
        be rendered, `CheckpointError` for a template that cannot be read.
        """
        values = {**(variables or {}), "messages": list(messages), "tools": list(tools) or None}
        escaper = _SpecialTokenEscaper((token.content for token in special), (self._source, *_texts(values)))
        rendered = self._render_template(_map_texts(values, escaper.escape))
        runs: list[tuple[str, str | None]] = []
        end = 0
        for found in _special_token_pattern(special).finditer(rendered):
            runs.append((escaper.unescape(rendered[end : found.start()]), found[found.lastindex or 0]))
            end = found.end()
        return [*runs, (escaper.unescape(rendered[end:]), None)]

    def _render_template(self, values: Mapping[str, Any]) -> str:
        try:
            template = _compile(self._source)
        except jinja2.TemplateError as error:
            raise self._invalid(error) from None
        try:
            return template.render(
                {"add_generation_prompt": True, "documents": None, **values, **self._variables}
            )
        except Exception as error:  # a template may fail in any way that an expression can
            raise PromptError(
                f"the checkpoint's chat template does not accept these messages ({error}); "
                f"change their roles or order, or send plain text"
            ) from None

    def _invalid(self, error: jinja2.TemplateError) -> CheckpointError:
        return CheckpointError(
            f"{self._where}: the chat template is not valid Jinja ({error}); correct it, or send plain text"
        )


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


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (key, *_texts(inner))
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same JSON value with changed texts."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_map_texts(inner, change) for inner in value]
    return value


def check_messages(messages: Sequence[Message]) -> None:
    """Raises `PromptError` for what is no chat."""
    if not messages:
        raise PromptError("got no chat messages; need one or more with role and content: add one")
    for message in messages:
        _check_message(message)


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str) and "arguments" in function


def _check_message(message: object) -> None:
    if (
        not isinstance(message, Mapping)
        or not {"role", "content"} <= message.keys() <= {"role", "content", *OPTIONAL_KEYS}
        or not all(
            isinstance(message[key], OPTIONAL_KEYS[key]) for key in OPTIONAL_KEYS.keys() & message.keys()
        )
        or not all(map(_is_call, message.get("tool_calls", ())))
    ):
        raise PromptError(
            f"got the chat message {message!r}; need an object with role and content, and of "
            f"{', '.join(OPTIONAL_KEYS)} what there is"
        )
    role, content = message["role"], message["content"]
    if role not in ROLES or not isinstance(content, str):
        raise PromptError(
            f"got a chat message with role {role!r} and content of type {type(content).__name__}; "
            f"allowed are the roles {', '.join(ROLES)} and text: change it"
        )


@lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    return _environment().from_string(source)


@cache
def _environment() -> jinja2.Environment:
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
    return environment
