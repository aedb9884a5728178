"""The objects of OpenAI's Responses API, with what this project adds under `lopa`."""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias

from pydantic import ConfigDict

from cluster.openai.completion_objects import ChatLogprob, RequestCost
from cluster.openai.response_model import ResponseModel
from lopa_ray.decoding.trajectory import Trajectory

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    """Always empty."""
    logprobs: list[ChatLogprob]
    """The log-probabilities of its tokens, if they were asked for."""


class OutputMessage(ResponseModel):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class OutputFunctionCall(ResponseModel):
    type: Literal["function_call"]
    id: str
    call_id: str
    """The id by which the call's output refers to it."""
    name: str
    arguments: str
    """JSON text."""
    status: ItemStatus


class ReasoningText(ResponseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(ResponseModel):
    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    """Always empty."""
    content: list[ReasoningText]
    status: ItemStatus


OutputItem: TypeAlias = OutputReasoning | OutputMessage | OutputFunctionCall


class InputTokensDetails(ResponseModel):
    """Counted for decisions; 0 for other responses."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(ResponseModel):
    """How many tokens of an answer are of which kind."""

    reasoning_tokens: int
    """The tokens of the reasoning, encoded again."""


class ResponseUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, read: int, written: int, *, cached: int = 0, stored: int = 0, reasoning: int = 0) -> Self:
        return cls(
            input_tokens=read,
            input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=stored),
            output_tokens=written,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
            total_tokens=read + written,
        )


class IncompleteDetails(ResponseModel):
    """Why an answer is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(ResponseModel):
    """Why there is no answer, or only a part of one."""

    code: str
    message: str


class ResponseObject(ResponseModel):
    """A response. What the request set is repeated in it."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float | None
    """Null: the model's default."""
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    """Null as long as the answer is not there."""
    user: str | None
    lopa: RequestCost | None = None
    trajectory: Trajectory | None = None
    """How the answer came about, if it was asked for."""


class ResponseEvent(ResponseModel):
    """An event of a response's stream; `type` determines its other fields."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int
    """Counts the events of the stream, from 0."""
