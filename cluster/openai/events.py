"""Server-sent events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.openai.response_model import dumps


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event of a stream."""

    data: Mapping[str, Any] | str  # an object, sent as JSON, or text without line breaks
    name: str | None = None  # its `event` field

    def encode(self) -> bytes:
        data = self.data.encode("ascii") if isinstance(self.data, str) else dumps(self.data)
        name = b"" if self.name is None else b"event: " + self.name.encode("ascii") + b"\n"
        return name + b"data: " + data + b"\n\n"
