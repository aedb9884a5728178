"""Regular expressions of JSON: values, and how objects and arrays are put together."""

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
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_NAME}(?:\.{_NAME})*\.[A-Za-z]{{2,}}",
}


def free(depth: int) -> str:
    """Any value with objects and arrays nested `depth` deep."""
    flat = f"true|false|null|{NUMBER}|{STRING}"
    if depth == 0:
        return f"(?:{flat})"
    inner = f"{free(depth - 1)}{SPACE}"
    return rf"(?:{flat}|{braces(f'{STRING}{SPACE}:{SPACE}{inner}')}|\[{SPACE}{separated(inner, 0, None)}\])"


def braces(pair: str | None) -> str:
    """An object of any number of such pairs; None: an empty one."""
    return rf"\{{{SPACE}{separated(pair, 0, None) if pair else ''}\}}"


def separated(item: str, least: int, most: int | None) -> str:
    """`least` to `most` (at least 1; None: without end) such items, with commas between."""
    more = f"(?:,{SPACE}{item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    return f"{item}{more}" if least else f"(?:{item}{more})?"


def in_order(pairs: list[tuple[str, bool]]) -> str:
    """Pairs with commas between; those that are not required may be left out."""
    comma = f",{SPACE}"
    first = next((at for at, (_, required) in enumerate(pairs) if required), None)
    rest, starts = "", []
    for pair, required in reversed(pairs if first is None else pairs[first + 1 :]):
        if first is None:
            starts.append(pair + rest)
        rest = (f"{comma}{pair}" if required else f"(?:{comma}{pair})?") + rest
    if first is not None:
        before = "".join(f"(?:{pair}{comma})?" for pair, _ in pairs[:first])
        return before + pairs[first][0] + rest
    return f"(?:{'|'.join(reversed(starts))})?" if starts else ""
