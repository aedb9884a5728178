"""Functions that a model may call, in the words of OpenAI's chat API."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag

from cluster.openai.errors import invalid_value, short_repr
from cluster.openai.request_model import JsonObject, RequestModel
from lopa_ray.text.client_object import TAG_MARK

MAX_TOOLS = 128
_WORD = f"{TAG_MARK}word"
NAMED_TAG, ALLOWED_TAG = f"{TAG_MARK}function", f"{TAG_MARK}allowed_tools"
AllowedMode: TypeAlias = Literal["auto", "required"]


Chosen: TypeAlias = tuple[tuple[str, ...], AllowedMode | None]
"""The functions that a `tool_choice` names, and the mode of a choice among these functions alone; None: the named
function is to be called."""

FunctionName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
"""Nothing that could end the text around it, or be a special token."""


def _check_parameters(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type", "object") != "object":
        raise ValueError(f"got the type {short_repr(value['type'])}; allowed: a schema of objects")
    return value


class Function(RequestModel):
    """A function that may be called."""

    name: FunctionName
    """Letters, digits and _.:/-"""

    description: str | None = None
    """The function's purpose, for the model."""

    parameters: Annotated[JsonObject, BeforeValidator(_check_parameters)] | None = None
    """JSON schema of its arguments; left out: it has none."""

    strict: bool | None = None
    """Whether calls that the model makes of its own accord are valid under `parameters`. Calls that `tool_choice` asks
    for always are."""


class Tool(RequestModel):
    type: Literal["function"]
    """Only functions are known."""

    function: Function


class FunctionReference(RequestModel):
    model_config = ConfigDict(extra="ignore")  # clients may repeat all of its definition

    name: str
    """The function's name in `tools`."""


class NamedToolChoice(RequestModel):
    """A call of one function."""

    type: Literal["function"]
    """Only functions are known."""

    function: FunctionReference

    def chosen(self) -> Chosen:
        return (self.function.name,), None


class AllowedTools(RequestModel):
    mode: AllowedMode
    """The value that `tool_choice` would have if `tools` had these alone."""

    tools: list[NamedToolChoice] = Field(max_length=MAX_TOOLS)


class AllowedToolChoice(RequestModel):
    """A choice among some of the functions."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def chosen(self) -> Chosen:
        return tuple(tool.function.name for tool in self.allowed_tools.tools), self.allowed_tools.mode


Tools: TypeAlias = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


def choice_type(value: Any) -> str:
    if not isinstance(value, dict | RequestModel):
        return _WORD
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return ALLOWED_TAG if given == "allowed_tools" else NAMED_TAG


ToolChoiceWord: TypeAlias = Annotated[Literal["none", "auto", "required"] | None, Tag(_WORD)]

ToolChoice: TypeAlias = Annotated[
    ToolChoiceWord
    | Annotated[NamedToolChoice, Tag(NAMED_TAG)]
    | Annotated[AllowedToolChoice, Tag(ALLOWED_TAG)],
    Discriminator(choice_type),
]


def new_call_id() -> str:
    """The id of a call, by which its result refers to it. Conversations hold many, so each is new."""
    return f"call_{uuid.uuid4().hex[:24]}"


def unique_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The functions themselves. Raises ApiError for two of one name."""
    names = [_name(tool) for tool in tools]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid_value("tools", f"got two functions with the name {name!r}; rename one")
    return tuple(tools)


def tool_options(
    tools: Sequence[Mapping[str, Any]], choice: str | Chosen | None
) -> dict[str, tuple[Any, ...]]:
    """The fields `tools` and `forced_tools` of a `ChoicesRequest`. Raises ApiError for two functions of one name, for a
    name that no function has, and for a call without functions."""
    offered = {_name(tool): tool for tool in unique_tools(tools)}
    if isinstance(choice, tuple):
        names, choice = choice
        for name in names:
            if name not in offered:
                known = ", ".join(offered) or "none"
                raise invalid_value("tool_choice", f"got the function {short_repr(name)}; tools has: {known}")
        if choice is None:
            return {"tools": tuple(tools), "forced_tools": names}
        offered = {name: tool for name, tool in offered.items() if name in names}
    if choice == "required" and not offered:
        raise invalid_value(
            "tool_choice", "got required without a function in tools; add one, or leave it out"
        )
    return {
        "tools": () if choice == "none" else tuple(offered.values()),
        "forced_tools": tuple(offered) if choice == "required" else (),
    }


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])
