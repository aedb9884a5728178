"""Structured output: the fields that ask for it, in OpenAI's and vLLM's words. None is supported yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STRUCTURED: Mapping[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
}
"""Each with the values (besides null) that ask for plain text."""
