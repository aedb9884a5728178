"""The request's `lopa` object: decode settings, and options that OpenAI's API does not have."""

from __future__ import annotations

from functools import cache
from typing import Any, Self

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import PydanticCustomError

from cluster.openai.errors import short_repr
from cluster.openai.request_model import RequestModel
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.http_field import MAX_INT, http_fields
from lopa_ray.config.removed import REMOVED
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.text.client_object import unknown_field_message

OPENAI_FIELDS = {
    name: field.fields or name for name, field in http_fields(GenerationSettings).items() if not field.in_lopa
}
"""Decode setting → its field at the top level of a request, where `lopa` is too."""

MAX_SETTING_CHARS = 100  # characters of a decode setting; an error message shows what it got


class LopaOptions(RequestModel):
    """Settings of diffusion decoding, and of what the response contains. The group checks decode settings,
    since they have to fit the decoder and its defaults."""

    model_config = ConfigDict(extra="allow")

    deadline: float | None = Field(default=None, gt=0, le=86400)
    """Seconds after which the request ends with 504."""

    partial: bool | None = None
    """At the deadline, the error carries what was decided so far. Only with `deadline`."""

    stream_canvas: bool | None = None
    """In a stream, send the whole canvas and the confidences of all branches after every step."""

    trace: bool | None = None
    """Add the request's steps in Chrome's trace format."""

    @property
    def decode_settings(self) -> dict[str, Any]:
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @model_validator(mode="after")
    def _check_decode_settings(self) -> Self:
        allowed = decode_settings() if self.model_extra else []
        for name, value in (self.model_extra or {}).items():
            if name in OPENAI_FIELDS:
                hint = f"is set outside of lopa: use {OPENAI_FIELDS[name]}"
                raise _setting_error("unsupported", name, hint)
            if name not in allowed:
                known = [*type(self).model_fields, *allowed]
                hint = f"is gone: {REMOVED[name]}" if name in REMOVED else unknown_field_message(name, known)
                raise _setting_error("unknown", name, hint)
            if isinstance(value, dict | list):
                raise _setting_error("unsupported", name, f"takes a single value: got {short_repr(value)}")
            if isinstance(value, str) and len(value) > MAX_SETTING_CHARS:
                hint = f"takes at most {MAX_SETTING_CHARS} characters: got {len(value)}"
                raise _setting_error("unsupported", name, hint)
            if isinstance(value, int) and abs(value) > MAX_INT:
                hint = f"takes no number beyond {MAX_INT}: got {short_repr(value)}"
                raise _setting_error("unsupported", name, hint)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        reference = super().__get_pydantic_json_schema__(core, handler)
        schema = handler.resolve_ref_schema(reference)
        schema["additionalProperties"] = False
        for name in decode_settings():
            schema["properties"][name] = _setting_schema(name)
        return reference


def decode_settings() -> list[str]:
    """The settings of all decoders that are registered by now."""
    return sorted(
        {name for decoder in DECODERS.values() for name in decoder.settings.model_fields}
        - OPENAI_FIELDS.keys()
    )


def _setting_error(error_type: str, name: str, message: str) -> PydanticCustomError:
    # Braces would be read as places for values.
    return PydanticCustomError(error_type, "{message}", {"field": name, "message": message})


@cache
def _setting_schema(name: str) -> dict[str, Any]:
    """The values that any of the decoders with a setting accepts."""
    variants: list[dict[str, Any]] = []
    for decoder in DECODERS:
        schema = _settings_schemas(decoder).get(name, {})
        variant = {key: value for key, value in schema.items() if key not in ("title", "default")}
        if variant and variant not in variants:
            variants.append(variant)
    return variants[0] if len(variants) == 1 else {"anyOf": variants}


@cache
def _settings_schemas(decoder: str) -> dict[str, Any]:
    """Setting → its schema, for one decoder. Made for each setting anew, they block a server for seconds."""
    properties: dict[str, Any] = DECODERS[decoder].settings.model_json_schema()["properties"]
    return properties
