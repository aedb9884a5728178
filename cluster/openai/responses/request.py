"""OpenAI's Responses API: the request. Nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from cluster.openai.errors import short_repr
from cluster.openai.request_model import UNUSED, JsonObject, RequestModel
from cluster.openai.responses.input import Items, template_messages
from cluster.openai.responses.tools import OtherTool, ResponseTool, ResponseToolChoice, ResponseTools
from cluster.openai.structured_output import ANY_JSON_OBJECT
from cluster.openai.tool_request import ToolRequest
from lopa_ray.config.http_field import MAX_INT
from lopa_ray.engine.session_factory import Prompt

LOGPROBS = "message.output_text.logprobs"


class TextFormat(RequestModel):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    """Any text, any JSON object, or JSON under a schema."""

    name: str | None = UNUSED
    description: str | None = UNUSED
    strict: bool | None = UNUSED

    definition: Annotated[JsonObject | None, Field(alias="schema")] = None
    """The schema of the answer. Only with type json_schema."""

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.definition is None) == (self.type == "json_schema"):
            raise ValueError("schema and type: json_schema need each other; give both or neither")
        return self


class TextConfig(RequestModel):
    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: TextFormat | None = None


class Reasoning(RequestModel):
    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "context": ("auto",),
        "generate_summary": ("auto", "concise", "detailed"),
        "mode": (),
        "summary": ("auto", "concise", "detailed"),
    }

    effort: str | None = Field(default=None, max_length=32)
    """The `reasoning_effort` of templates that use it; none or instant: also `enable_thinking` is false."""


class ResponseStreamOptions(RequestModel):
    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}


class ResponsesRequest(ToolRequest):
    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "moderation": (),
        "prompt": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory", "24h"),
        "truncation": ("disabled",),
    }

    prompt_field: ClassVar[str] = "input"
    top_logprobs_field: ClassVar[str] = "top_logprobs"

    input: Items
    """Text, or items: messages, calls and what they returned, reasoning."""

    instructions: str | None = None
    """A system message in front."""

    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Exact number of positions for the answer, which may end earlier by itself."""

    tools: ResponseTools | None = None
    """Functions that the answer may call. Tools of other types are left out, with a header that says so."""

    tool_choice: ResponseToolChoice = None
    """none: no calls; auto (the default with `tools`): as the model likes; required: a call of one of the functions; or
    a function to call; or some of the functions, for auto or required."""

    max_tool_calls: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Accepted, and not used: it bounds OpenAI's own tools."""

    text: TextConfig | None = None
    reasoning: Reasoning | None = None

    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    """The log-probability of every token. Reasoning is never encrypted."""

    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Add this many most likely tokens at each place."""

    client_metadata: JsonObject | None = UNUSED

    store: bool | None = None
    """Only false: nothing is stored."""

    previous_response_id: str | None = None
    """Not supported: nothing is stored."""

    stream_options: ResponseStreamOptions | None = None
    """Nothing of it is supported."""

    @field_validator("store", "previous_response_id")
    @classmethod
    def _nothing_is_stored(cls, value: Any) -> Any:
        if value:
            raise ValueError(
                f"got {short_repr(value)}, but this server stores nothing; leave it out, and send the earlier turns as "
                "input"
            )
        return value

    @property
    def max_tokens_field(self) -> str:
        return "max_output_tokens"

    @property
    def warnings(self) -> tuple[str, ...]:
        others = sorted({tool.type for tool in self.tools or () if isinstance(tool, OtherTool)})
        return (f"tools: left out {', '.join(others)}; only functions can be called",) if others else ()

    def own_functions(self) -> list[dict[str, Any]]:
        tools = [tool for tool in self.tools or () if isinstance(tool, ResponseTool)]
        return [tool.model_dump(exclude_none=True) for tool in tools]

    def functions(self) -> list[dict[str, Any]]:
        return [{"type": function.pop("type"), "function": function} for function in self.own_functions()]

    def effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort

    def prompts(self) -> tuple[Prompt, ...]:
        return (template_messages(self.input, self.instructions),)

    def num_top_logprobs(self) -> int | None:
        asked = self.top_logprobs is not None or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if asked else None

    def constraint_fields(self) -> dict[str, tuple[str, Any]]:
        form = self.text.format if self.text is not None else None
        if form is None or form.type == "text":
            return {}
        schema = (
            ANY_JSON_OBJECT if form.definition is None else json.dumps(form.definition, ensure_ascii=False)
        )
        return {"text.format": ("guided_json", schema)}
