"""The base class of all responses, and how they are written as JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class ResponseModel(BaseModel):
    """Base class of all responses."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields that were set."""
        return self.model_dump(exclude_unset=True)


def dumps(value: Any) -> bytes:
    """JSON in ASCII: no client takes a line separator of Unicode for the end of an event."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
