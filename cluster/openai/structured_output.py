"""Structured output: its request fields, OpenAI's and vLLM's, and the decode settings that they set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from cluster.openai.errors import short_repr
from cluster.openai.request_model import UNUSED, RequestModel

ANY_JSON_OBJECT = '{"type": "object"}'  # the schema for requests of any JSON object


def _schema_text(value: Any) -> Any:
    if not isinstance(value, str | dict | None):
        raise ValueError(f"got {short_repr(value)}; allowed: a JSON schema, as an object or as text")
    try:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    except RecursionError:
        raise ValueError("it is nested too deeply; simplify it") from None


JsonSchema: TypeAlias = Annotated[
    str | None, BeforeValidator(_schema_text, json_schema_input_type=str | dict[str, Any] | None)
]

GuidedChoice: TypeAlias = Annotated[list[str], Field(min_length=1)]


class NamedSchema(RequestModel):
    """OpenAI's wrapping of a JSON schema."""

    name: str | None = UNUSED
    description: str | None = UNUSED
    strict: bool | None = UNUSED

    definition: Annotated[JsonSchema, Field(alias="schema")] = None
    """The schema of the answer; left out: any JSON object."""


class ResponseFormat(RequestModel):
    """OpenAI's field."""

    type: Literal["text", "json_object", "json_schema"]
    """Any text, any JSON object, or JSON under a schema."""

    json_schema: NamedSchema | None = None
    """Only with type json_schema."""

    @model_validator(mode="after")
    def _check_json_schema(self) -> Self:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise ValueError("json_schema and type: json_schema need each other; give both or neither")
        return self

    @property
    def schema_text(self) -> str | None:
        """The schema as JSON text; None: any text."""
        if self.json_schema is not None:
            return ANY_JSON_OBJECT if self.json_schema.definition is None else self.json_schema.definition
        return ANY_JSON_OBJECT if self.type == "json_object" else None


class StructuredOutputs(RequestModel):
    """vLLM's object. One of its fields is set."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "disable_additional_properties": (False,),
        "disable_any_whitespace": (False,),
        "disable_fallback": (False, True),
        "grammar": (),
        "whitespace_pattern": (),
    }

    definition: Annotated[JsonSchema, Field(alias="json")] = None
    """The answer is JSON that is valid under this schema."""

    json_object: bool | None = None
    """The answer is any JSON object."""

    regex: str | None = None
    """The answer is what this matches as a whole."""

    choice: GuidedChoice | None = None
    """The answer is one of these."""

    structural_tag: JsonSchema = None
    """Structures (begin, schema, end) that the answer keeps to wherever one of the triggers occurs."""
