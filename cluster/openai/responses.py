"""OpenAI's Responses API: the request. Nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from cluster.openai.errors import short_repr
from cluster.openai.generation_request import GenerationRequest
from cluster.openai.request_model import MAX_INT, JsonObject, RequestModel
from cluster.openai.responses_input import Items, template_messages
from cluster.openai.responses_tools import ResponseTool, ResponseToolChoice, ResponseTools
from cluster.openai.structured_output import ANY_JSON_OBJECT
from cluster.openai.tools import reasoning_variables, tool_options
from lopa_ray.engine.session_factory import Prompt

LOGPROBS = "message.output_text.logprobs"


class TextFormat(RequestModel):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    """Any text, any JSON object, or JSON under a schema."""

    name: str | None = None
    """Accepted, and not used."""

    description: str | None = None
    """Accepted, and not used."""

    definition: Annotated[JsonObject | None, Field(alias="schema")] = None
    """What the answer is valid under. Only with type json_schema."""

    strict: bool | None = None
    """Accepted, and not used: answers are always valid."""

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.definition is None) == (self.type == "json_schema"):
            raise ValueError("schema and type: json_schema need each other; give both or neither")
        return self


class TextConfig(RequestModel):
    """How the answer's text is to be."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: TextFormat | None = None
    """Its form."""


class Reasoning(RequestModel):
    """How much the model is to reason."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "context": ("auto",),
        "generate_summary": ("auto", "concise", "detailed"),
        "mode": (),
        "summary": ("auto", "concise", "detailed"),
    }

    effort: str | None = Field(default=None, max_length=32)
    """For templates that use `reasoning_effort`; none: also `enable_thinking` is false."""


class ResponseStreamOptions(RequestModel):
    """How a stream looks."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}


class ResponsesRequest(GenerationRequest):
    """A response."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **{
            name: neutral for name, neutral in GenerationRequest.unsupported_fields.items() if name != "store"
        },
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

    parallel_tool_calls: bool | None = None
    """False: at most one call. An answer that has to call a function (`tool_choice`) always has one."""

    max_tool_calls: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Accepted, and not used: it bounds OpenAI's own tools."""

    text: TextConfig | None = None
    """The form of the answer's text."""

    reasoning: Reasoning | None = None
    """How much the model is to reason."""

    chat_template_kwargs: JsonObject | None = None
    """Variables for the chat template, such as enable_thinking."""

    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    """The log-probability of every token. Reasoning is never encrypted."""

    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Add this many most likely tokens at each place."""

    client_metadata: JsonObject | None = None
    """Accepted, and not used."""

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
        """The field that sets the number of tokens of the answer."""
        return "max_output_tokens"

    @property
    def functions(self) -> list[ResponseTool]:
        """The tools that are functions."""
        return [tool for tool in self.tools or () if isinstance(tool, ResponseTool)]

    @property
    def warnings(self) -> tuple[str, ...]:
        others = sorted({tool.type for tool in self.tools or () if not isinstance(tool, ResponseTool)})
        return (f"tools: left out {', '.join(others)}; only functions can be called",) if others else ()

    @property
    def tools_field(self) -> str | None:
        """`tools`, if it has functions."""
        return "tools" if self.functions else None

    @property
    def raw(self) -> bool:
        """Input goes through the chat template."""
        return False

    def prompts(self) -> tuple[Prompt, ...]:
        """One chat, in the roles of chat templates."""
        return (template_messages(self.input, self.instructions),)

    def max_new_tokens(self) -> int | None:
        """`max_output_tokens`."""
        return self.max_output_tokens

    def num_top_logprobs(self) -> int | None:
        """How many most likely tokens to list at each place; None: no log-probabilities at all."""
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

    def choices_options(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}
            for tool in self.functions
        ]
        choice = self.tool_choice if isinstance(self.tool_choice, str | None) else self.tool_choice.chosen()
        effort = None if self.reasoning is None else self.reasoning.effort
        return {
            **tool_options(tools, choice),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "template_variables": reasoning_variables(effort) | (self.chat_template_kwargs or {}),
        }
