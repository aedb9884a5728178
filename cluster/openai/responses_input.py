"""The input of OpenAI's Responses API: items, from which the messages of a chat are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from cluster.openai.errors import short_repr
from lopa_ray.text.chat_message import (
    REFUSAL_TAG,
    TEXT_TAG,
    EarlierCall,
    EarlierFunction,
    RefusalPart,
    check_content,
    or_refusal,
    part_tag,
)
from lopa_ray.text.client_object import TAG_MARK, type_tag
from lopa_ray.text.tolerant_object import TolerantObject


class InputText(TolerantObject):
    """A piece of text."""

    type: Literal["input_text", "output_text", "summary_text", "reasoning_text", "text"]
    """Only text is understood."""

    text: str
    """Pieces are joined with nothing between them."""

    annotations: list[Any] | None = None
    """Accepted, and not used."""

    logprobs: list[Any] | None = None
    """Accepted, and not used: an answer has them if they were asked for."""

    parsed: Any = None
    """Accepted, and not used: OpenAI's client adds it to what it has parsed."""


def _as_parts(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of text parts")
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


InputPart: TypeAlias = Annotated[
    Annotated[InputText, Tag(TEXT_TAG)] | Annotated[RefusalPart, Tag(REFUSAL_TAG)], Discriminator(part_tag)
]

MessageParts: TypeAlias = Annotated[
    list[InputPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[InputPart])
]

TextParts: TypeAlias = Annotated[
    list[InputText], BeforeValidator(_as_parts, json_schema_input_type=str | list[InputText])
]


class InputItem(TolerantObject):
    """What all items may have: clients hand outputs back with all their fields."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "async": (False,),
        "async_": (False,),
        "caller": (),
        "namespace": (),
        "phase": ("commentary", "final_answer"),
    }

    id: str | None = None
    """Accepted, and not used."""

    status: Literal["in_progress", "completed", "incomplete"] | None = None
    """Accepted, and not used."""


class MessageItem(InputItem):
    """A message."""

    type: Literal["message"] = "message"
    """May be left out."""

    role: Literal["system", "developer", "user", "assistant"]
    """developer is another word for system."""

    content: MessageParts | None = None
    """Text, or parts that are text. A message of the assistant may have none."""

    refusal: str | None = None
    """The text of a message of the assistant that has no other."""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        check_content(self.role, self.content)
        return self


class FunctionCallItem(InputItem):
    """A call that an answer made."""

    type: Literal["function_call"]
    """Names the kind of item."""

    call_id: str
    """By which its output refers to it."""

    name: str
    """The function's name."""

    arguments: str
    """JSON text."""

    parsed_arguments: Any = None
    """Accepted, and not used: OpenAI's client adds it to what it has parsed."""


class FunctionOutputItem(InputItem):
    """What a function returned."""

    type: Literal["function_call_output"]
    """Names the kind of item."""

    call_id: str
    """The call."""

    output: TextParts | None = None
    """Text, or parts that are text; nothing where the function returned none."""


class ReasoningItem(InputItem):
    """An answer's reasoning."""

    type: Literal["reasoning"]
    """Names the kind of item."""

    summary: list[InputText] | None = None
    """Stands for the content where there is none."""

    content: list[InputText] | None = None
    """The reasoning."""

    encrypted_content: str | None = None
    """Accepted, and not used."""


def _item_type(value: Any) -> str:
    return type_tag(value, "message")


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag(f"{TAG_MARK}message")]
    | Annotated[FunctionCallItem, Tag(f"{TAG_MARK}function_call")]
    | Annotated[FunctionOutputItem, Tag(f"{TAG_MARK}function_call_output")]
    | Annotated[ReasoningItem, Tag(f"{TAG_MARK}reasoning")],
    Discriminator(
        _item_type,
        custom_error_type="unknown_item",
        custom_error_message="items of the types message, function_call, function_call_output and reasoning; nothing "
        "is stored here that another one could refer to",
    ),
]


def _as_items(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of items")
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


Items: TypeAlias = Annotated[
    list[Item],
    BeforeValidator(_as_items, json_schema_input_type=str | list[Item]),
    Field(min_length=1),
]


def template_messages(items: Sequence[Item], instructions: str | None) -> tuple[dict[str, Any], ...]:
    """What the template gets; see `lopa_ray.text.chat_template.Message`.

    Reasoning, text and calls that follow each other are one message of the assistant.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        if isinstance(item, FunctionOutputItem):
            messages.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _text(item.content)})
        else:
            _add_to_answer(messages, item)
    return tuple(messages)


def _add_to_answer(messages: list[dict[str, Any]], item: Item) -> None:
    """Add an assistant's item to its last message, or as a new one where the last already goes on behind it."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    begins = isinstance(item, ReasoningItem) or (
        isinstance(item, MessageItem) and last is not None and (last["content"] or "tool_calls" in last)
    )
    if last is None or begins:
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if isinstance(item, MessageItem):
        last["content"] = or_refusal(_text(item.content), item.role, item.refusal)
    elif isinstance(item, FunctionCallItem):
        function = EarlierFunction(name=item.name, arguments=item.arguments)
        call = EarlierCall(id=item.call_id, function=function)
        last.setdefault("tool_calls", []).append(call.template_call())
    elif isinstance(item, ReasoningItem):
        last["reasoning_content"] = _text(item.content or item.summary)


def _text(parts: Sequence[InputText | RefusalPart] | None) -> str:
    return "".join(part.text for part in parts or ())
