"""What a decision is about, in OpenAI's shape: texts and JSON, and the messages and calls that have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from cluster.openai.errors import invalid_value, short_repr
from lopa_ray.text.chat_message import (
    REFUSAL_TAG,
    EarlierCall,
    EarlierFunction,
    RefusalPart,
    check_content,
    or_refusal,
)
from lopa_ray.text.client_object import TAG_MARK, type_tag
from lopa_ray.text.json_content import check_json, json_text
from lopa_ray.text.tolerant_object import TolerantObject

NO_IMAGES = "is not supported: models here read text alone; leave the image out"


def _check_data(value: Any) -> Any:
    if not isinstance(value, dict) and not (
        isinstance(value, list) and all(isinstance(part, dict) for part in value)
    ):
        raise ValueError(f"got {short_repr(value)}; allowed: an object, or a list of objects")
    check_json(value)
    return value


class DecisionText(TolerantObject):
    """A piece of text."""

    type: Literal["input_text", "output_text"]
    """Names the kind of part."""

    text: str
    """Parts are joined with nothing between them; JSON gets lines of its own."""

    prompt_cache_breakpoint: Any = None
    """Accepted, and not used."""


class DecisionJson(TolerantObject):
    """JSON, which the model reads as text."""

    type: Literal["input_json"]
    """Names the kind of part."""

    data: Annotated[
        Any, BeforeValidator(_check_data, json_schema_input_type=dict[str, Any] | list[dict[str, Any]])
    ]
    """An object, or a list of objects: at most 32 levels, 10,000 values, and 256 KiB of compact JSON."""


class DecisionImage(TolerantObject):
    """An image, which no model here reads."""

    type: Literal["input_image"]
    """Names the kind of part."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        raise PydanticCustomError("unsupported", NO_IMAGES, {"field": "image_url"})


DecisionPart: TypeAlias = Annotated[
    Annotated[DecisionText, Tag(f"{TAG_MARK}input_text")]
    | Annotated[DecisionText, Tag(f"{TAG_MARK}output_text")]
    | Annotated[RefusalPart, Tag(REFUSAL_TAG)]
    | Annotated[DecisionJson, Tag(f"{TAG_MARK}input_json")]
    | Annotated[DecisionImage, Tag(f"{TAG_MARK}input_image")],
    Discriminator(
        type_tag,
        custom_error_type="unknown_part",
        custom_error_message="parts of the types input_text and input_json",
    ),
]


def _as_parts(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of parts")
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Content: TypeAlias = Annotated[
    list[DecisionPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[DecisionPart])
]


class DecisionItem(TolerantObject):
    """What all items may have."""

    id: str | None = None
    """Accepted, and not used."""

    status: Literal["in_progress", "completed", "incomplete"] | None = None
    """Accepted, and not used."""

    namespace: str | None = None
    """Accepted, and not used."""

    phase: Literal["commentary", "final_answer"] | None = None
    """Accepted, and not used."""


class DecisionMessageItem(DecisionItem):
    """A message."""

    type: Literal["message"] = "message"
    """May be left out."""

    role: Literal["system", "developer", "user", "assistant"]
    """developer is another word for system."""

    content: Content | None = None
    """Text, or parts. A message of the assistant may have none."""

    refusal: str | None = None
    """The text of a message of the assistant that has no other."""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        check_content(self.role, self.content)
        return self


class DecisionCall(DecisionItem):
    """A call of a function."""

    type: Literal["function_call"]
    """Names the kind of item."""

    call_id: str
    """By which its output refers to it."""

    name: str
    """The function's name."""

    arguments: str
    """JSON text."""


class DecisionCustomCall(DecisionItem):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    """Names the kind of item."""

    call_id: str
    """By which its output refers to it."""

    name: str
    """The tool's name."""

    input: str
    """What it was given."""


class DecisionOutput(DecisionItem):
    """What a function or a custom tool returned."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    """Names the kind of item."""

    call_id: str
    """The call, which stands before it."""

    output: Content | None = None
    """Text, or parts; nothing where the function returned none."""


def _item_type(value: Any) -> str:
    return type_tag(value, "message")


Item: TypeAlias = Annotated[
    Annotated[DecisionMessageItem, Tag(f"{TAG_MARK}message")]
    | Annotated[DecisionCall, Tag(f"{TAG_MARK}function_call")]
    | Annotated[DecisionCustomCall, Tag(f"{TAG_MARK}custom_tool_call")]
    | Annotated[DecisionOutput, Tag(f"{TAG_MARK}function_call_output")]
    | Annotated[DecisionOutput, Tag(f"{TAG_MARK}custom_tool_call_output")],
    Discriminator(
        _item_type,
        custom_error_type="unknown_item",
        custom_error_message="items of the types message, function_call, function_call_output, custom_tool_call and "
        "custom_tool_call_output",
    ),
]


def _input_type(value: Any) -> str:
    return f"{TAG_MARK}text" if isinstance(value, str) else f"{TAG_MARK}items"


DecisionInputParam: TypeAlias = Annotated[
    Annotated[str, Tag(f"{TAG_MARK}text")]
    | Annotated[list[Item], Field(min_length=1), Tag(f"{TAG_MARK}items")],
    Discriminator(_input_type),
]
"""A text, or items."""


def content_text(parts: Sequence[DecisionPart] | None) -> str:
    """The text of parts, if there are any. JSON has lines of its own."""
    text, is_json = "", False
    for part in parts or ():
        last, is_json = is_json, isinstance(part, DecisionJson)
        added = _part_text(part)
        text += f"\n{added}" if text and added and (last or is_json) and not text.endswith("\n") else added
    return text


def _part_text(part: DecisionPart) -> str:
    return json_text(part.data) if isinstance(part, DecisionJson) else getattr(part, "text", "")


def decision_input(given: str | Sequence[Item]) -> str | tuple[dict[str, Any], ...]:
    """A text, or what the chat template gets. Raises ApiError (400) for an output without its call before it."""
    return given if isinstance(given, str) else tuple(_messages(given))


def _messages(items: Sequence[Item]) -> Iterator[dict[str, Any]]:
    calls: set[str] = set()
    for index, item in enumerate(items):
        if isinstance(item, DecisionMessageItem):
            role = "system" if item.role == "developer" else item.role
            yield {"role": role, "content": or_refusal(content_text(item.content), role, item.refusal)}
        elif isinstance(item, DecisionOutput):
            if item.call_id not in calls:
                raise invalid_value(
                    f"input[{index}].call_id",
                    f"got {short_repr(item.call_id)}, which no call before it has; add the call",
                )
            yield {"role": "tool", "content": content_text(item.output), "tool_call_id": item.call_id}
        else:
            calls.add(item.call_id)
            arguments = item.arguments if isinstance(item, DecisionCall) else item.input
            call = EarlierCall(id=item.call_id, function=EarlierFunction(name=item.name, arguments=arguments))
            yield {"role": "assistant", "content": "", "tool_calls": [call.template_call()]}
