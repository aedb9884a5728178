"""The common part of requests for chat and for text completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints

from cluster.openai.errors import invalid_value, short_repr
from cluster.openai.generation_request import GenerationRequest
from cluster.openai.request_model import RequestModel
from cluster.openai.structured_output import StructuredRequest
from lopa_ray.config.http_field import MAX_INT


def _as_list(value: Any) -> Any:
    if value is not None and not isinstance(value, str | list):
        raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of texts")
    return [value] if isinstance(value, str) else value


Stop: TypeAlias = Annotated[
    list[Annotated[str, StringConstraints(min_length=1)]],
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]


class StreamOptions(RequestModel):
    """How a stream looks."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool | None = None
    """Send a last chunk without choices that has the usage of the whole request."""

    continuous_usage_stats: bool | None = None
    """With `include_usage`: every chunk has the usage up to there."""


class MultiChoiceRequest(StructuredRequest, GenerationRequest):
    """A request for choices."""

    n: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Choices per prompt."""

    best_of: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Only as many as `n`: no further candidates are made."""

    stop: Stop | None = None
    """The answer ends before the first of these texts."""

    stream_options: StreamOptions | None = None
    """Only with `stream`."""

    def choices_options(self) -> dict[str, Any]:
        n = self.n or 1
        if self.stream_options is not None and not self.stream:
            raise invalid_value("stream_options", "only has a meaning with stream: true; leave it out")
        if self.best_of not in (None, n):
            raise invalid_value(
                "best_of",
                f"got {self.best_of} with n {n}; more candidates than n are not supported: leave it out",
            )
        return super().choices_options() | {"n": n, "stop": tuple(self.stop or ())}
