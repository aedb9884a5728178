"""The base of what is sent, and how it is written as JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class ResponseModel(BaseModel):
    """Base of what is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields that were set."""
        return self.model_dump(exclude_unset=True)


def dumps(value: Any) -> bytes:
    """JSON in ASCII: no client takes a line separator of Unicode for the end of an event."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
