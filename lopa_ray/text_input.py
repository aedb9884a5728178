"""Text and JSON that come from outside: files, lines of files, bodies of requests."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from lopa_ray.errors import short_repr

BYTE_ORDER_MARK = codecs.BOM_UTF8
"""Some editors begin a text in UTF-8 with it. It is not part of the text."""

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _RefusedError(ValueError):
    """Python's parser reads it, and JSON cannot say it."""


def check_encoding(beginning: bytes) -> None:
    """Raises ValueError, which says what to do, if a text that begins so is in UTF-16 or UTF-32."""
    encoding = json.detect_encoding(beginning[:4])
    if not encoding.startswith("utf-8"):
        raise ValueError(f"its encoding is {encoding[:6].upper()}; save it as UTF-8")


def decode_text(data: bytes) -> str:
    """A text in UTF-8, with or without a byte order mark. Raises ValueError, which says what to do, for any other."""
    check_encoding(data)
    text = data.removeprefix(BYTE_ORDER_MARK)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + len(data) - len(text)
        raise ValueError(f"not valid UTF-8: {error.reason} at byte {at}; save it as UTF-8") from None


def read_text(path: str | Path) -> str:
    """The text of a file. Raises ValueError, which does not name the file, and OSError."""
    return decode_text(Path(path).read_bytes())


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for any other text, for values outside of JSON (NaN, infinity, half a
    surrogate pair), and for an object with one name twice, of which one value would be lost."""
    text = decode_text(text) if isinstance(text, bytes) else text.removeprefix("\ufeff")
    try:
        value = json.loads(
            text, parse_constant=_reject_constant, parse_float=_parse_float, object_pairs_hook=_object_of
        )
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (json.JSONDecodeError, _RefusedError):
        raise
    except UnicodeEncodeError:
        raise ValueError(
            "a text has half a surrogate pair (\\ud800 to \\udfff alone), which is no character"
        ) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # Python reads no integers of more than some thousand digits
        raise ValueError("a number has too many digits") from None
    return value


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _RefusedError(f"the number {text[:40]} is too large")
    return value


def _reject_constant(text: str) -> NoReturn:
    raise _RefusedError(f"{text} is not a JSON number")


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _RefusedError(f"the name {short_repr(twice)} is twice in one object")
    return values
