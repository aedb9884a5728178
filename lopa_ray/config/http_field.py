"""HttpField: how HTTP requests set a decode setting. The setting declares it, and `cluster.openai` makes the field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from lopa_ray.errors import short_repr

MAX_INT = 2**31 - 1  # no count, size or token id in a request is larger

MAX_LOGIT_BIAS = 1024
"""Tokens that may have a bias: every plan lists them. vLLM's limit."""


@dataclass(frozen=True, slots=True)
class HttpField:
    """Annotates a setting. Without it, requests have a field of the setting's name, type and bounds."""

    type: Any = None
    """The field's type, if clients write other values."""
    off: tuple[Any, ...] = ()
    """Values that clients send for None, the setting switched off."""
    fields: str | None = None
    """Names of the fields that set it, if request models have these for themselves."""
    in_lopa: bool = False
    """Requests have it in `lopa`: OpenAI's API has no word for it."""


def http_fields(settings: type[BaseModel]) -> dict[str, HttpField]:
    """Setting → how requests set it."""
    return {
        name: next((item for item in field.metadata if isinstance(item, HttpField)), HttpField())
        for name, field in settings.model_fields.items()
    }


def _check_token_ids(value: Any) -> Any:
    for token in value if isinstance(value, dict) else ():
        if not re.fullmatch(r"[0-9]{1,10}", token):
            raise ValueError(f"got {short_repr(token)}; allowed: token ids, as text")
    return value


def _check_draft(value: Any) -> Any:
    is_ids = isinstance(value, list) and all(type(token) is int and 0 <= token <= MAX_INT for token in value)
    if not isinstance(value, str) and not is_ids:
        raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of token ids")
    return value


Draft: TypeAlias = Annotated[Any, BeforeValidator(_check_draft, json_schema_input_type=str | list[int])]

LogitBias: TypeAlias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIAS),
    BeforeValidator(_check_token_ids),
]
"""JSON's keys are text."""

Seed: TypeAlias = Annotated[int, Field(ge=-(2**63), lt=2**63), AfterValidator(lambda seed: seed % 2**63)]
"""OpenAI's seeds are any 64-bit number; settings have none below 0."""

TokenIds: TypeAlias = Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(max_length=64)]

TopK: TypeAlias = Annotated[int, Field(ge=-1, le=MAX_INT)]

Words: TypeAlias = Annotated[list[str], Field(max_length=256)]
