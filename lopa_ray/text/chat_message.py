"""The messages of a chat, from OpenAI's shape to the shape of chat templates: for every place that takes chats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from lopa_ray.errors import PromptError, short_repr
from lopa_ray.text.chat_template import Message
from lopa_ray.text.client_object import MAX_DEPTH, ByType, ClientObject, first_error, is_too_deep
from lopa_ray.text.tolerant_object import TolerantObject


def _as_arguments(value: Any) -> Any:
    """Templates write arguments as JSON, so they get an object; text that is not a JSON object they get as it is."""
    if not isinstance(value, str | dict) or (isinstance(value, dict) and is_too_deep(value)):
        got = short_repr(value)
        raise ValueError(f"got {got}; allowed: JSON text, or an object of at most {MAX_DEPTH} levels")
    try:
        arguments = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
    return arguments if isinstance(arguments, dict) and not is_too_deep(arguments) else value


class TextPart(TolerantObject):
    """A piece of a message's text."""

    type: Literal["text"]
    """Only text is understood."""

    text: str
    """Pieces are joined with nothing between them."""


class RefusalPart(TolerantObject):
    """A piece of an assistant's message, in which it refuses. Templates get it as text."""

    type: Literal["refusal"]
    """Names the kind of part."""

    refusal: str
    """The assistant's words."""

    @property
    def text(self) -> str:
        return self.refusal


MessagePart: TypeAlias = Annotated[TextPart | RefusalPart, ByType("text")]
"""The class of text refuses unknown types."""


class EarlierFunction(TolerantObject):
    """A function and what it was called with."""

    name: str
    """The function's name."""

    arguments: Annotated[Any, BeforeValidator(_as_arguments, json_schema_input_type=str | dict[str, Any])]
    """JSON text, or the object itself."""

    parsed_arguments: Any = None
    """Accepted, and not used: OpenAI's client adds it to what it has parsed."""


class EarlierCall(TolerantObject):
    """A call that an assistant's message made."""

    id: str | None = None
    """The id by which a tool's message refers to it."""

    type: Literal["function"] = "function"
    """Only functions are known."""

    function: EarlierFunction
    """The function that was called."""

    index: int | None = None
    """Accepted, and not used."""

    def template_call(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"type": "function", "function": function} | ({} if self.id is None else {"id": self.id})


def _as_parts(value: Any) -> Any:
    if not isinstance(value, str | list | None):
        raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of text parts")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


TEXTLESS_ROLES = ("assistant", "tool")
"""Roles whose messages may have no text: an answer may be empty, or calls alone, and a tool may return nothing."""


def or_refusal(text: str, role: str, refusal: str | None) -> str:
    """The text of a message: an assistant's without text has its refusal."""
    return text or (refusal if role == "assistant" else None) or ""


def check_content(role: str, parts: Sequence[Any] | None) -> None:
    """Raises PydanticCustomError for a message that lacks content, and for a refusal that is not the assistant's."""
    if parts is None and role not in TEXTLESS_ROLES:
        raise PydanticCustomError("missing", "missing", {"field": "content"})
    if role != "assistant" and any(isinstance(part, RefusalPart) for part in parts or ()):
        problem = "has a refusal, which is only for the role assistant; send text"
        raise PydanticCustomError("unsupported", problem, {"field": "content"})


class ChatMessage(TolerantObject):
    """A message of a chat. Clients hand answers back with all their empty fields."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"audio": (), "function_call": ()}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """developer is another word for system; tool: what a function returned."""

    content: Annotated[
        list[MessagePart] | None,
        BeforeValidator(_as_parts, json_schema_input_type=str | list[MessagePart] | None),
    ] = None
    """Text, or parts that are text. Messages of an assistant or a tool may have none."""

    refusal: str | None = None
    """The text of an assistant's message that has no other."""

    name: str | None = None
    """Who speaks, for templates that write it."""

    reasoning_content: str | None = None
    """An assistant's reasoning, for templates that write it."""

    reasoning: str | None = None
    """The same under another name."""

    tool_calls: list[EarlierCall] | None = None
    """Only in an assistant's message."""

    tool_call_id: str | None = None
    """Only in a tool's message: the call whose result it has."""

    parsed: Any = None
    """Accepted, and not used: OpenAI's client adds it to what it has parsed."""

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        check_content(self.role, self.content)
        if self.content == [] and self.role not in TEXTLESS_ROLES:
            message = "got []; allowed: text, or a list of text parts"
            raise PydanticCustomError("value_error", message, {"field": "content"})
        for name, role in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
            if getattr(self, name) and self.role != role:
                problem = "is only for the role {role}; leave it out"
                raise PydanticCustomError("unsupported", problem, {"field": name, "role": role})
        return self

    def template_message(self) -> dict[str, Any]:
        text = "".join(part.text for part in self.content or ())
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": or_refusal(text, self.role, self.refusal),
        }
        if self.tool_calls:
            message["tool_calls"] = [call.template_call() for call in self.tool_calls]
        reasoning = self.reasoning_content or self.reasoning
        optional = {"name": self.name, "reasoning_content": reasoning, "tool_call_id": self.tool_call_id}
        return message | {name: value for name, value in optional.items() if value}


class _Chat(ClientObject):
    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)


def read_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages of a chat as templates get them. What this returns, it reads as the same. Raises PromptError, which
    names the field, for messages that are empty or wrong."""
    try:
        plain = [dict(message) if isinstance(message, Mapping) else message for message in messages]
        chat = _Chat.model_validate({"messages": plain})
    except ValidationError as error:
        raise PromptError(first_error(error, _Chat).message) from None
    return [message.template_message() for message in chat.messages]
