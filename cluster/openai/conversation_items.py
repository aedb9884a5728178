"""The items of a conversation, as the Responses API and decisions both take them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from cluster.openai.request_model import UNUSED, or_text
from lopa_ray.text.chat_message import EarlierCall, EarlierFunction, check_content
from lopa_ray.text.tolerant_object import TolerantObject


class Item(TolerantObject):
    """Clients hand outputs back with all their fields."""

    id: str | None = UNUSED
    status: Literal["in_progress", "completed", "incomplete"] | None = UNUSED


class Message(Item):
    type: Literal["message"] = "message"
    """May be left out."""

    role: Literal["system", "developer", "user", "assistant"]
    """developer is another word for system."""

    content: list[Any] | None = None
    """Text, or parts. A message of the assistant may have none."""

    refusal: str | None = None
    """The text of a message of the assistant that has no other."""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        check_content(self.role, self.content)
        return self

    @property
    def template_role(self) -> str:
        return "system" if self.role == "developer" else self.role


class Call(Item):
    call_id: str
    """The id by which the call's output refers to it."""

    name: str

    def template_call(self, arguments: str) -> dict[str, Any]:
        function = EarlierFunction(name=self.name, arguments=arguments)
        return EarlierCall(id=self.call_id, function=function).template_call()


class FunctionCall(Call):
    type: Literal["function_call"]

    arguments: str
    """JSON text."""


def parts_or_text(part: Any) -> BeforeValidator:
    """A validator of a list of parts of this type, for which a text may stand."""
    return or_text("parts", lambda text: {"type": "input_text", "text": text}, str | list[part])
