"""Held-out wordings of `stories.toml`, which no training problem may have, as patterns."""

from __future__ import annotations

import functools
import re

from lopa_lab.word_problems.generator import KINDS

WORD = r"[\w$'-]+(?: [\w$'-]+)?"
"""The words that a placeholder stands for: one or two."""


@functools.cache
def held_out_pattern() -> re.Pattern[str]:
    """A text in which one of the held-out wordings stands, whatever its words and numbers are, matches this."""
    wordings = sorted({wording for kind in KINDS for sentence in kind.story for wording in sentence.held_out})
    alternatives = (re.sub(r"\\{\w+\\}", lambda _: WORD, re.escape(wording)) for wording in wordings)
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})", re.IGNORECASE)


def has_held_out_words(question: str) -> bool:
    """Whether a held-out wording stands in a question."""
    return held_out_pattern().search(question) is not None
