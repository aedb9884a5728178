r"""The keyword `pattern`: expressions of ECMA 262 as automata of strings' insides.

Engines read the same expression differently: for some \d has all Unicode digits, for some . has U+2028. An automaton is
therefore either narrow (it accepts the texts that all of them match) or wide (it accepts the texts that any matches).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.automaton_operations import difference, intersection, minimized
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.json_expressions import choice_of_texts, plain_text
from lopa_ray.errors import SettingsError

_NARROW = {
    "d": "[0-9]", "w": "[0-9A-Za-z_]", "s": "[ ]",
    "D": r"[\x00-/:-\x7f]", "W": r"[\x00-/:-@\[-\^`{-\x7f]", "S": "[!-~]", ".": r"[^\n\r\x{85}\x{2028}\x{2029}]",
}  # fmt: skip
_WIDE = {
    "d": r"[0-9\x{80}-\x{10ffff}]", "w": r"[0-9A-Za-z_\x{80}-\x{10ffff}]", "s": r"[\x00-\x20\x{80}-\x{10ffff}]",
    "D": "[^0-9]", "W": "[^0-9A-Za-z_]", "S": "[^ ]", ".": "(?s:.)",
}  # fmt: skip
_ANYTHING = "(?s:.)*"

_TOKEN = re.compile(r"\\.|\[\^?+(?:\\.|[^\\])(?:\\.|[^\]\\])*+(?P<closed>\])?|\(\?[=!]|.", re.DOTALL)
"""An escape, a class in brackets, the beginning of a lookahead, or a single character."""


@dataclass(slots=True)
class _Alternative:
    """A part of the expression between bars. `looks`: the lookaheads at its beginning, and which are positive."""

    from_start: bool = False
    to_end: bool = False
    looks: list[tuple[bool, str]] = field(default_factory=list)
    body: str = ""


@lru_cache(1024)
def matching_text(
    wanted: tuple[str, ...], unwanted: tuple[str, ...], excluded: tuple[str, ...]
) -> ByteAutomaton:
    """The automaton of strings' insides without escapes that match all `wanted` and no `unwanted` patterns, and are
    none of the `excluded` texts. Raises SettingsError for a pattern that is not supported, and TooManyStatesError."""
    found = plain_text()
    for pattern in wanted:
        found = intersection(found, pattern_automaton(pattern))
    for pattern in unwanted:
        found = difference(found, pattern_automaton(pattern, wide=True))
    texts = choice_of_texts(json.dumps(text, ensure_ascii=False)[1:-1] for text in excluded)
    return found if texts is None else difference(found, build_automaton(texts))


@lru_cache(1024)
def pattern_automaton(pattern: str, *, wide: bool = False) -> ByteAutomaton:
    """The automaton of strings' insides without escapes in which a pattern is found. A narrow pattern without any
    anchor stands for the whole text, as it is mostly meant, if some text matches. Raises as `matching_text` does."""
    parts = list(_alternatives(pattern, wide))
    free = not any(part.from_start or part.to_end or part.looks for part in parts)
    if free and not wide:
        whole = _found([replace(part, from_start=True, to_end=True) for part in parts], wide)
        if whole.accepting.any():
            return minimized(whole)
    return minimized(_found(parts, wide))


def _found(parts: list[_Alternative], wide: bool) -> ByteAutomaton:
    looking = [part for part in parts if part.looks]
    if looking and len(parts) > 1:
        raise SettingsError(
            "lookaheads are supported in patterns without alternatives only; use several schemas"
        )
    found = intersection(plain_text(), ByteAutomaton.from_regex("|".join(map(_regex, parts)), trusted=True))
    for positive, inner in (look for part in looking for look in part.looks):
        anchored = [replace(part, from_start=True) for part in _alternatives(inner, wide == positive)]
        seen = _found(anchored, wide == positive)
        found = intersection(found, seen) if positive else difference(found, seen)
    return found


def _regex(part: _Alternative) -> str:
    before, after = "" if part.from_start else _ANYTHING, "" if part.to_end else _ANYTHING
    return f"{before}(?:{part.body}){after}"


def _alternatives(pattern: str, wide: bool) -> Iterator[_Alternative]:
    """The alternatives of a pattern, with classes of characters written out."""
    classes = _WIDE if wide else _NARROW
    current, depth = _Alternative(), 0
    tokens = _tokens(_without_group(pattern))
    for token in tokens:
        if depth == 0 and token == "|":
            yield current
            current = _Alternative()
        elif (
            current.to_end
            or (token == "$" and depth)
            or (token == "^" and (depth or current.body or current.from_start))
        ):
            raise SettingsError("it has an anchor inside; leave it out, or write the alternatives at the top")
        elif token == "^":
            current.from_start = True
        elif token == "$":
            current.to_end = True
        elif depth == 0 and token in ("(?=", "(?!"):
            if current.body or not current.from_start:
                raise SettingsError("a lookahead is supported behind a leading ^ only; leave it out")
            current.looks.append((token == "(?=", _group(tokens)))
        elif token[0] == "\\":
            current.body += _escaped(token, classes)
        elif token[0] == "[":
            current.body += _class(token, wide)
        else:
            depth += (token[0] == "(") - (token == ")")
            current.body += classes["."] if token == "." else token
            if depth < 0:
                break
    if depth:
        raise SettingsError("its parentheses are not balanced; correct them")
    yield current


def _tokens(pattern: str) -> Iterator[str]:
    for found in _TOKEN.finditer(pattern):
        if found[0][0] == "[" and not found["closed"]:
            raise SettingsError("a bracket is not closed; close it")
        yield found[0]


def _escaped(escape: str, classes: dict[str, str]) -> str:
    if escape[1:] in ("A", "z", "Z"):
        raise SettingsError("it has an anchor inside; leave it out")
    return classes.get(escape[1:], escape) if escape != "\\." else escape


def _class(token: str, wide: bool) -> str:
    """A class in brackets in Rust's syntax, which has classes in classes and operators: two of &, ~, - in a row."""
    classes = _WIDE if wide != token.startswith("[^") else _NARROW
    return token[0] + re.sub(
        r"\\.|\[|&(?<=&&)|~(?<=~~)|-(?<=--)",
        lambda found: _escaped(found[0], classes) if found[0][0] == "\\" else "\\" + found[0],
        token[1:],
        flags=re.DOTALL,
    )


def _without_group(pattern: str) -> str:
    if not re.match(r"\((?!\?)|\(\?:", pattern):
        return pattern
    tokens = _tokens(pattern)
    next(tokens)
    inside = _group(tokens)
    return pattern if next(tokens, None) is not None else _without_group(inside.removeprefix("?:"))


def _group(tokens: Iterator[str]) -> str:
    """The inside of a group, of which the beginning was read."""
    inside, depth = "", 1
    for token in tokens:
        depth += (token[0] == "(") - (token == ")")
        if depth == 0:
            return inside
        inside += token
    raise SettingsError("its parentheses are not balanced; correct them")
