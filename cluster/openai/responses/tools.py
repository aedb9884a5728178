"""Tools in the words of OpenAI's Responses API: functions, and tools of other types, which are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from cluster.openai.errors import short_repr
from cluster.openai.request_model import RequestModel
from cluster.openai.tools import (
    ALLOWED_TAG,
    MAX_TOOLS,
    NAMED_TAG,
    AllowedMode,
    Chosen,
    Function,
    ToolChoiceWord,
    choice_type,
)
from lopa_ray.text.client_object import ByType


class ResponseTool(Function):
    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "defer_loading": (False,),
        "allowed_callers": (["direct"],),
        "output_schema": (),
    }

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        # Else the error would be about the fields of a tool of another type.
        if isinstance(value, dict) and value.get("type", "function") != "function":
            message = "is not supported: got {got}; allowed: function"
            fields = {"field": "type", "got": short_repr(value["type"])}
            raise PydanticCustomError("unsupported", message, fields)
        return value


OtherToolType: TypeAlias = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]


class OtherTool(RequestModel):
    """A tool other than a function. It is left out, and a header of the response names its type."""

    model_config = ConfigDict(extra="ignore")

    type: OtherToolType


ResponseTools: TypeAlias = Annotated[
    list[Annotated[ResponseTool | OtherTool, ByType("function")]], Field(max_length=MAX_TOOLS)
]


class NamedTool(RequestModel):
    """A call of one function."""

    model_config = ConfigDict(extra="ignore")  # clients may repeat all of its definition

    type: Literal["function"]
    """Only functions can be called."""

    name: str
    """The tool's name in `tools`."""

    def chosen(self) -> Chosen:
        return (self.name,), None


class AllowedToolsChoice(RequestModel):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    mode: AllowedMode
    """The value that `tool_choice` would have if `tools` had these alone."""

    tools: list[Annotated[NamedTool | OtherTool, ByType("function")]] = Field(max_length=MAX_TOOLS)
    """The allowed tools. Tools of other types are left out, as in `tools` of the request."""

    def chosen(self) -> Chosen:
        return tuple(tool.name for tool in self.tools if isinstance(tool, NamedTool)), self.mode


ResponseToolChoice: TypeAlias = Annotated[
    ToolChoiceWord | Annotated[NamedTool, Tag(NAMED_TAG)] | Annotated[AllowedToolsChoice, Tag(ALLOWED_TAG)],
    Discriminator(choice_type),
]
