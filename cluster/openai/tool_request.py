"""Requests that go through a chat template, whose answers may call functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.openai.generation_request import GenerationRequest
from cluster.openai.request_model import JsonObject
from cluster.openai.tools import tool_options


class ToolRequest(GenerationRequest):
    """The part of chats and of the Responses API."""

    tool_choice: Any = None

    parallel_tool_calls: bool | None = None
    """False: at most one call. An answer that has to call a function (`tool_choice`) always has one."""

    chat_template_kwargs: JsonObject | None = None
    """Variables for the chat template, such as enable_thinking."""

    @abstractmethod
    def functions(self) -> Sequence[Mapping[str, Any]]:
        """The functions in the shape of OpenAI's chat API."""

    @abstractmethod
    def effort(self) -> str | None:
        """How much the model is to reason."""

    @property
    def tools_field(self) -> str | None:
        return "tools" if self.functions() else None

    def choices_options(self) -> dict[str, Any]:
        effort, choice = self.effort(), self.tool_choice
        effort = "none" if effort == "instant" else effort
        variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        if effort == "none":
            variables["enable_thinking"] = False
        return super().choices_options() | {
            **tool_options(self.functions(), choice if isinstance(choice, str | None) else choice.chosen()),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "template_variables": variables | (self.chat_template_kwargs or {}),
        }
