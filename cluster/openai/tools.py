"""Functions that a model may call, in the words of OpenAI's chat API."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag

from cluster.openai.errors import invalid_value, short_repr
from cluster.openai.request_model import JsonObject, RequestModel
from lopa_ray.text.client_object import TAG_MARK

MAX_TOOLS = 128

_WORD, _OBJECT = f"{TAG_MARK}word", f"{TAG_MARK}object"

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
    """What it does, for the model."""

    parameters: Annotated[JsonObject, BeforeValidator(_check_parameters)] | None = None
    """JSON schema of its arguments; left out: it has none."""

    strict: bool | None = None
    """Also a call that the model makes of its own accord is valid under `parameters`. Calls that `tool_choice` asks for
    always are."""


class Tool(RequestModel):
    """A tool."""

    type: Literal["function"]
    """Only functions are known."""

    function: Function
    """Which one."""


class FunctionReference(RequestModel):
    """One of the functions."""

    name: str
    """Its name in `tools`."""


class NamedToolChoice(RequestModel):
    """A call of one function."""

    type: Literal["function"]
    """Only functions are known."""

    function: FunctionReference
    """Which one."""


def check_choice(value: Any) -> Any:
    """The value, if a `tool_choice` can be of its type. Raises ValueError with what is allowed."""
    if isinstance(value, dict | None) or value in ("none", "auto", "required"):
        return value
    raise ValueError(
        f"got {short_repr(value)}; allowed: none, auto, required, or an object that names a function"
    )


Tools: TypeAlias = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


def choice_type(value: Any) -> str:
    """The tag of a `tool_choice` that `check_choice` took."""
    return _OBJECT if isinstance(value, dict | RequestModel) else _WORD


ToolChoiceWord: TypeAlias = Annotated[Literal["none", "auto", "required"] | None, Tag(_WORD)]

ToolChoice: TypeAlias = Annotated[
    ToolChoiceWord | Annotated[NamedToolChoice, Tag(_OBJECT)],
    Discriminator(choice_type),
    BeforeValidator(check_choice),
]


def new_call_id() -> str:
    """The id of a call, by which its result refers to it. Conversations hold many, so each is new."""
    return f"call_{uuid.uuid4().hex[:24]}"


def reasoning_variables(effort: str | None) -> dict[str, Any]:
    """Variables of the chat template that set the amount of reasoning."""
    thinking = {"enable_thinking": False} if effort == "none" else {}
    return {} if effort is None else {"reasoning_effort": effort, **thinking}


def offered_tools(tools: Sequence[Mapping[str, Any]], choice: str | None) -> tuple[Mapping[str, Any], ...]:
    """The functions that the model may call. Raises ApiError for two of one name."""
    names = [tool["function"]["name"] for tool in tools]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid_value("tools", f"got two functions with the name {name!r}; rename one")
    return () if choice == "none" else tuple(tools)


def forced_names(tools: Sequence[Mapping[str, Any]], choice: str | None, name: str | None) -> tuple[str, ...]:
    """Names of the functions one of which the answer has to call: by `choice` ("required"), or by `name`.

    Raises ApiError where there is no such function.
    """
    names = tuple(tool["function"]["name"] for tool in tools)
    if name is not None:
        if name not in names:
            known = ", ".join(names) or "none"
            raise invalid_value("tool_choice", f"got the function {short_repr(name)}; tools has: {known}")
        return (name,)
    if choice == "required" and not names:
        raise invalid_value(
            "tool_choice", "got required without a function in tools; add one, or leave it out"
        )
    return names if choice == "required" else ()
