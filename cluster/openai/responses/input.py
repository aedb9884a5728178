"""The input of OpenAI's Responses API: items, from which the messages of a chat are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from cluster.openai.conversation_items import FunctionCall, Item, Message, parts_or_text
from cluster.openai.request_model import UNUSED, or_text
from lopa_ray.text.chat_message import RefusalPart, or_refusal
from lopa_ray.text.client_object import ByType
from lopa_ray.text.tolerant_object import TolerantObject


class InputText(TolerantObject):
    """A piece of text."""

    type: Literal["input_text", "output_text", "summary_text", "reasoning_text", "text"]
    """Only text is understood."""

    text: str
    """Pieces are joined with nothing between them."""

    annotations: list[Any] | None = UNUSED
    logprobs: list[Any] | None = UNUSED
    parsed: Any = UNUSED
    """OpenAI's client adds it to what it has parsed."""


InputPart: TypeAlias = Annotated[InputText | RefusalPart, ByType("text")]

MessageParts: TypeAlias = Annotated[list[InputPart], parts_or_text(InputPart)]
TextParts: TypeAlias = Annotated[list[InputText], parts_or_text(InputText)]


class InputItem(Item):
    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "async": (False,),
        "async_": (False,),
        "caller": (),
        "namespace": (),
        "phase": ("commentary", "final_answer"),
    }


class MessageItem(Message, InputItem):
    content: MessageParts | None = None
    """Text, or parts that are text. A message of the assistant may have none."""


class FunctionCallItem(FunctionCall, InputItem):
    parsed_arguments: Any = UNUSED
    """OpenAI's client adds it to what it has parsed."""


class FunctionOutputItem(InputItem):
    type: Literal["function_call_output"]
    call_id: str
    output: TextParts | None = None
    """Text, or parts that are text; nothing where the function returned none."""


class ReasoningItem(InputItem):
    type: Literal["reasoning"]

    summary: list[InputText] | None = None
    """Stands for the content where there is none."""

    content: list[InputText] | None = None
    encrypted_content: str | None = UNUSED


ResponsesItem: TypeAlias = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem,
    ByType(
        "message",
        allowed="items of the types message, function_call, function_call_output and reasoning; nothing "
        "is stored here that another one could refer to",
    ),
]


Items: TypeAlias = Annotated[
    list[ResponsesItem],
    or_text("items", lambda text: {"role": "user", "content": text}, str | list[ResponsesItem]),
    Field(min_length=1),
]


def template_messages(items: Sequence[ResponsesItem], instructions: str | None) -> tuple[dict[str, Any], ...]:
    """Messages for the chat template. Reasoning, text and calls in a row are one message of the assistant."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        if isinstance(item, FunctionOutputItem):
            messages.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append({"role": item.template_role, "content": _text(item.content)})
        else:
            _add_to_answer(messages, item)
    return tuple(messages)


def _add_to_answer(messages: list[dict[str, Any]], item: ResponsesItem) -> None:
    """A new message where the last message is complete already."""
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
        last.setdefault("tool_calls", []).append(item.template_call(item.arguments))
    elif isinstance(item, ReasoningItem):
        last["reasoning_content"] = _text(item.content or item.summary)


def _text(parts: Sequence[InputText | RefusalPart] | None) -> str:
    return "".join(part.text for part in parts or ())
