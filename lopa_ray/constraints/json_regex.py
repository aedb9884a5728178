"""Regular expressions of JSON values, objects and arrays."""

from __future__ import annotations

SPACE = "[ ]?"
CHARACTER = r'(?:[^"\\\x00-\x1f\x7f-\x9f]|\\["\\/bfnrt])'
STRING = f'"{CHARACTER}*"'
INTEGER = "-?(?:0|[1-9][0-9]*)"
NUMBER = rf"{INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"

_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_DATE = (
    r"[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
STRING_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_NAME}(?:\.{_NAME})*\.[A-Za-z]{{2,}}",
}


def any_value(depth: int) -> str:
    """Any JSON value with at most `depth` levels of nested objects and arrays."""
    flat = f"true|false|null|{NUMBER}|{STRING}"
    if depth == 0:
        return f"(?:{flat})"
    inner = f"{any_value(depth - 1)}{SPACE}"
    members, items = uniform_object(f"{STRING}{SPACE}:{SPACE}{inner}"), comma_separated(inner, 0, None)
    return rf"(?:{flat}|{members}|\[{SPACE}{items}\])"


def uniform_object(pair: str | None) -> str:
    """An object of any number of members that all match `pair`; an empty object if `pair` is None."""
    return rf"\{{{SPACE}{comma_separated(pair, 0, None) if pair else ''}\}}"


def comma_separated(item: str, minimum: int, maximum: int | None) -> str:
    """A list of `minimum` to `maximum` items with commas between. `maximum` is at least 1; None means unbounded."""
    more = f"(?:,{SPACE}{item}){{{max(minimum - 1, 0)},{'' if maximum is None else maximum - 1}}}"
    return f"{item}{more}" if minimum else f"(?:{item}{more})?"


def ordered_properties(pairs: list[tuple[str, bool]]) -> str:
    """The members of an object in the given order, with commas between: (pair, whether it is required)."""
    comma = f",{SPACE}"
    first = next((at for at, (_, required) in enumerate(pairs) if required), None)
    rest, alternatives = "", []
    for pair, required in reversed(pairs if first is None else pairs[first + 1 :]):
        if first is None:
            alternatives.append(pair + rest)
        rest = (f"{comma}{pair}" if required else f"(?:{comma}{pair})?") + rest
    if first is not None:
        before = "".join(f"(?:{pair}{comma})?" for pair, _ in pairs[:first])
        return before + pairs[first][0] + rest
    return f"(?:{'|'.join(reversed(alternatives))})?" if alternatives else ""
