r"""The keyword `pattern`: expressions of ECMA 262 as automata of strings' insides.

Engines read the same expression differently: for some \d has all Unicode digits, for some . has U+2028. An automaton is
therefore either narrow (it accepts only what all of them match) or wide (it accepts what any of them matches).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from lopa_ray.constraints.automaton_builder import minimized
from lopa_ray.constraints.automaton_operations import difference, intersection, is_empty
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.json_expressions import plain_text
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


@dataclass(slots=True)
class _Alternative:
    """A part of the expression between bars: its beginning and end are anchors or not."""

    from_start: bool = False
    to_end: bool = False
    looks: list[tuple[bool, str]] = field(default_factory=list)
    """The lookaheads at its beginning: whether each is positive, and what it looks for."""
    body: str = ""


@lru_cache(1024)
def pattern_automaton(pattern: str, *, wide: bool = False) -> ByteAutomaton:
    """The automaton of texts without characters that JSON escapes in which a pattern is found.

    A narrow pattern without any anchor stands for the whole text, as it is mostly meant, if some text matches.
    Raises SettingsError for an expression that is not supported, and TooManyStatesError.
    """
    parts = list(_alternatives(pattern, wide))
    free = not any(part.from_start or part.to_end or part.looks for part in parts)
    if free and not wide:
        whole = _found([_Alternative(True, True, [], part.body) for part in parts], wide)
        if not is_empty(whole):
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
        seen = _found(_anchored(inner, wide == positive), wide == positive)
        found = intersection(found, seen) if positive else difference(found, seen)
    return found


def _anchored(pattern: str, wide: bool) -> list[_Alternative]:
    """What a lookahead at the start looks for."""
    parts = list(_alternatives(pattern, wide))
    return [_Alternative(True, part.to_end, part.looks, part.body) for part in parts]


def _regex(part: _Alternative) -> str:
    before, after = "" if part.from_start else _ANYTHING, "" if part.to_end else _ANYTHING
    return f"{before}(?:{part.body}){after}"


def _alternatives(pattern: str, wide: bool) -> Iterator[_Alternative]:
    """The alternatives of a pattern, with classes of characters written out."""
    pattern = _without_group(pattern)
    current, depth, at = _Alternative(), 0, 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            current.body += _escaped(pattern[at : at + 2], _WIDE if wide else _NARROW)
            at += 2
            continue
        if sign == "[":
            members, at = _class(pattern, at, wide)
            current.body += members
            continue
        if sign == "(" and pattern[at : at + 3] in ("(?=", "(?!") and depth == 0:
            if current.body or not current.from_start:
                raise SettingsError("a lookahead is supported behind a leading ^ only; leave it out")
            end = _group_end(pattern, at)
            current.looks.append((pattern[at + 2] == "=", pattern[at + 3 : end]))
            at = end + 1
            continue
        if sign == "|" and depth == 0:
            yield current
            current = _Alternative()
        elif sign == "^" and depth == 0 and not current.body and not current.from_start:
            current.from_start = True
        elif sign == "$" and depth == 0 and pattern[at + 1 : at + 2] in ("", "|"):
            current.to_end = True
        elif sign in "^$":
            raise SettingsError("it has an anchor inside; leave it out, or write the alternatives at the top")
        else:
            depth += (sign == "(") - (sign == ")")
            current.body += (_WIDE if wide else _NARROW)["."] if sign == "." else sign
            if depth < 0:
                break
        at += 1
    if depth:
        raise SettingsError("its parentheses are not balanced; correct them")
    yield current


def _escaped(escape: str, classes: dict[str, str]) -> str:
    if escape[1:] in ("A", "z", "Z"):
        raise SettingsError("it has an anchor inside; leave it out")
    return classes.get(escape[1:], escape) if escape != "\\." else escape


def _class(pattern: str, at: int, wide: bool) -> tuple[str, int]:
    """A class in brackets in Rust's syntax, and where it ends."""
    negated = pattern[at + 1 : at + 2] == "^"
    classes = _WIDE if wide != negated else _NARROW
    body = pattern[at : at + 1 + negated]
    at += 1 + negated
    first = True
    while at < len(pattern) and (pattern[at] != "]" or first):
        if pattern[at] == "\\":
            body += _escaped(pattern[at : at + 2], classes)
            at += 2
        else:
            # Rust has classes in classes and operators: [ and two of &, ~, - in a row.
            repeated = pattern[at] in "&~-" and pattern[at - 1] == pattern[at]
            body += "\\" + pattern[at] if pattern[at] == "[" or repeated else pattern[at]
            at += 1
        first = False
    if at >= len(pattern):
        raise SettingsError("a bracket is not closed; close it")
    return body + "]", at + 1


def _without_group(pattern: str) -> str:
    """The pattern without a group around all of it."""
    opening = "(?:" if pattern.startswith("(?:") else "("
    is_group = pattern.startswith("(") and (opening == "(?:" or not pattern.startswith("(?"))
    if not is_group or _group_end(pattern, 0) != len(pattern) - 1:
        return pattern
    return _without_group(pattern[len(opening) : -1])


def _group_end(pattern: str, at: int) -> int:
    """Where the group that begins at `at` is closed."""
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            at = _class(pattern, at, False)[1] - 1
        else:
            depth += (pattern[at] == "(") - (pattern[at] == ")")
            if depth == 0:
                return at
        at += 1
    raise SettingsError("its parentheses are not balanced; correct them")
