"""Structured output: its request fields, OpenAI's and vLLM's, and the decode settings that they set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from cluster.openai.errors import short_repr
from cluster.openai.request_model import UNUSED, RequestModel

ANY_JSON_OBJECT = '{"type": "object"}'
"""The schema for requests of any JSON object."""


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
"""As text."""

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
        """None: any text."""
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


class StructuredRequest(RequestModel):
    """The fields for structured output. At most one may be given."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "guided_decoding_backend": (),
        "guided_grammar": (),
        "guided_whitespace_pattern": (),
    }

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

    def constraint_fields(self) -> dict[str, tuple[str, Any]]:
        """Each field that constrains the answer, with the decode setting that it sets and its value."""
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
