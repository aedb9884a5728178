"""RawText: text that is encoded without a chat template."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RawText:
    text: str
    parse_special: bool  # special tokens are recognised in it
