"""The input of a decision, in OpenAI's shape: texts and JSON, and the messages and calls that have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from cluster.openai.conversation_items import Call, FunctionCall, Item, Message, parts_or_text
from cluster.openai.errors import invalid_value, short_repr
from cluster.openai.request_model import UNUSED
from lopa_ray.text.chat_message import RefusalPart, or_refusal
from lopa_ray.text.client_object import TAG_MARK, ByType
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
    type: Literal["input_text", "output_text"]

    text: str
    """Parts are joined with nothing between them; JSON gets lines of its own."""

    prompt_cache_breakpoint: Any = UNUSED


class DecisionJson(TolerantObject):
    """JSON, which the model reads as text."""

    type: Literal["input_json"]

    data: Annotated[
        Any, BeforeValidator(_check_data, json_schema_input_type=dict[str, Any] | list[dict[str, Any]])
    ]
    """An object, or a list of objects: at most 32 levels, 10,000 values, and 256 KiB of compact JSON."""


class DecisionImage(TolerantObject):
    """An image, which no model here reads."""

    type: Literal["input_image"]

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        raise PydanticCustomError("unsupported", NO_IMAGES, {"field": "image_url"})


DecisionPart: TypeAlias = Annotated[
    DecisionText | RefusalPart | DecisionJson | DecisionImage,
    ByType(allowed="parts of the types input_text and input_json"),
]


Content: TypeAlias = Annotated[list[DecisionPart], parts_or_text(DecisionPart)]


class DecisionItem(Item):
    namespace: str | None = UNUSED
    phase: Literal["commentary", "final_answer"] | None = UNUSED


class DecisionMessageItem(Message, DecisionItem):
    content: Content | None = None
    """Text, or parts. A message of the assistant may have none."""


class DecisionCall(FunctionCall, DecisionItem):
    """A call of a function."""


class DecisionCustomCall(Call, DecisionItem):
    type: Literal["custom_tool_call"]
    input: str


class DecisionOutput(DecisionItem):
    """The output of a function or a custom tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]

    call_id: str
    """The call, which stands before it."""

    output: Content | None = None
    """Text, or parts; nothing where the function returned none."""


AnyDecisionItem: TypeAlias = Annotated[
    DecisionMessageItem | DecisionCall | DecisionCustomCall | DecisionOutput,
    ByType(
        "message",
        allowed="items of the types message, function_call, function_call_output, custom_tool_call and "
        "custom_tool_call_output",
    ),
]


DecisionInputParam: TypeAlias = Annotated[
    Annotated[str, Tag(f"{TAG_MARK}text")]
    | Annotated[list[AnyDecisionItem], Field(min_length=1), Tag(f"{TAG_MARK}items")],
    Discriminator(lambda value: f"{TAG_MARK}{'text' if isinstance(value, str) else 'items'}"),
]
"""A text, or items."""


def content_text(parts: Sequence[DecisionPart] | None) -> str:
    text, is_json = "", False
    for part in parts or ():
        last, is_json = is_json, isinstance(part, DecisionJson)
        added = json_text(part.data) if isinstance(part, DecisionJson) else getattr(part, "text", "")
        text += f"\n{added}" if text and added and (last or is_json) and not text.endswith("\n") else added
    return text


def decision_input(given: str | Sequence[AnyDecisionItem]) -> str | tuple[dict[str, Any], ...]:
    """A text, or what the chat template gets. Raises ApiError (400) for an output without its call before it."""
    return given if isinstance(given, str) else tuple(_messages(given))


def _messages(items: Sequence[AnyDecisionItem]) -> Iterator[dict[str, Any]]:
    calls: set[str] = set()
    for index, item in enumerate(items):
        if isinstance(item, DecisionMessageItem):
            text = or_refusal(content_text(item.content), item.role, item.refusal)
            yield {"role": item.template_role, "content": text}
        elif isinstance(item, DecisionOutput):
            if item.call_id not in calls:
                message = f"got {short_repr(item.call_id)}, which no call before it has; add the call"
                raise invalid_value(f"input[{index}].call_id", message)
            yield {"role": "tool", "content": content_text(item.output), "tool_call_id": item.call_id}
        else:
            calls.add(item.call_id)
            arguments = item.arguments if isinstance(item, DecisionCall) else item.input
            yield {"role": "assistant", "content": "", "tool_calls": [item.template_call(arguments)]}
