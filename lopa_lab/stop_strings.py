"""Texts that end an answer."""

from __future__ import annotations

from collections.abc import Iterable


def cut_at_stop(text: str, stop: Iterable[str]) -> str:
    """`text` without the first of the texts `stop` that it has, and without what follows it."""
    return text[: min((at for string in stop if (at := text.find(string)) >= 0), default=len(text))]
