"""The common part of requests for chat and for text completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, StringConstraints

from cluster.openai.errors import invalid_value
from cluster.openai.generation_request import GenerationRequest
from cluster.openai.request_model import RequestModel, or_text
from cluster.openai.structured_output import (
    ANY_JSON_OBJECT,
    GuidedChoice,
    JsonSchema,
    ResponseFormat,
    StructuredOutputs,
)
from lopa_ray.config.http_field import MAX_INT

Stop: TypeAlias = Annotated[
    list[Annotated[str, StringConstraints(min_length=1)]], or_text("texts", str, str | list[str])
]


class StreamOptions(RequestModel):
    """Options of a stream."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool | None = None
    """Send a last chunk without choices that has the usage of the whole request."""

    continuous_usage_stats: bool | None = None
    """Whether every chunk has the usage up to there. Needs `include_usage`."""


class MultiChoiceRequest(GenerationRequest):
    """A request for choices. It has at most one of the fields for structured output."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "guided_decoding_backend": (),
        "guided_grammar": (),
        "guided_whitespace_pattern": (),
    }

    n: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Choices per prompt."""

    best_of: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Only as many as `n`: no further candidates are made."""

    stop: Stop | None = None
    """The answer ends before the first of these texts."""

    stream_options: StreamOptions | None = None
    """Only with `stream`."""

    response_format: ResponseFormat | None = None
    """Text, any JSON object, or JSON under a schema."""

    structured_outputs: StructuredOutputs | None = None
    """A schema, a regular expression or choices, in vLLM's words."""

    guided_json: JsonSchema = None
    """The answer is JSON that is valid under this schema."""

    guided_regex: str | None = None
    """The answer is what this regular expression matches as a whole."""

    guided_choice: GuidedChoice | None = None
    """The answer is one of these."""

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

    def constraint_fields(self) -> dict[str, tuple[str, Any]]:
        outputs = self.structured_outputs or StructuredOutputs()
        fields: dict[str, tuple[str, Any]] = {
            "response_format": ("guided_json", self.response_format and self.response_format.schema_text),
            "structured_outputs.json": ("guided_json", outputs.definition),
            "structured_outputs.json_object": (
                "guided_json",
                ANY_JSON_OBJECT if outputs.json_object else None,
            ),
            "structured_outputs.regex": ("guided_regex", outputs.regex),
            "structured_outputs.choice": ("guided_choice", outputs.choice),
            "structured_outputs.structural_tag": ("guided_structural_tag", outputs.structural_tag),
            "guided_json": ("guided_json", self.guided_json),
            "guided_regex": ("guided_regex", self.guided_regex),
            "guided_choice": ("guided_choice", self.guided_choice),
        }
        return {name: (setting, value) for name, (setting, value) in fields.items() if value is not None}
