"""The objects of chat and text completions, with this project's own under `lopa`. Only fields that were set are
sent."""

from __future__ import annotations

from typing import Any, Literal

from cluster.choices.messages import ChoiceCanvas, ChoiceCost, ChoiceFinishReason, Cost
from cluster.openai.response_model import ResponseModel
from lopa_ray.decoding.trajectory import Trajectory


class Trace(ResponseModel):
    """Steps in Chrome's trace format."""

    traceEvents: list[dict[str, Any]]  # noqa: N815 - Chrome's name


class RequestCost(Cost):
    """The cost of all choices together; times are the longest of them, but phases are summed."""

    trace: Trace | None = None
    """If it was asked for."""


class CanvasNote(ResponseModel):
    """The `lopa` object of a chunk that shows the canvas; such a chunk has no choices."""

    canvas: ChoiceCanvas


class Usage(ResponseModel):
    """Tokens of a request; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Envelope(ResponseModel):
    """The beginning of every completion, and of every chunk of one."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class WholeCompletion(Envelope):
    """A completion."""

    usage: Usage
    lopa: RequestCost


class AnyChunk(Envelope):
    """An event of a stream."""

    usage: Usage | None = None
    lopa: RequestCost | CanvasNote | None = None


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A decided token, in the pass that decided it."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseModel):
    content: list[ChatLogprob]
    refusal: None


class CalledFunction(ResponseModel):
    name: str
    arguments: str
    """JSON text."""


class MadeCall(ResponseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    """Null if the answer has calls alone."""
    refusal: None
    reasoning_content: str | None = None
    """Text between `<think>` and `</think>`."""
    tool_calls: list[MadeCall] | None = None


class ChatChoice(ResponseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChoiceFinishReason | None
    """Null only for what a deadline cut off."""
    lopa: ChoiceCost
    trajectory: Trajectory | None = None
    """How the answer came about, if it was asked for."""


class ChatCompletion(WholeCompletion):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CalledFunctionChunk(ResponseModel):
    name: str | None = None
    arguments: str


class CallChunk(ResponseModel):
    """The addition to a call: id, type and name in its first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionChunk


class ChatDelta(ResponseModel):
    """The addition to a message: all fields in the first chunk, one part in each later chunk, nothing in the last."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[CallChunk] | None = None


class ChatChunkChoice(ResponseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChoiceFinishReason | None
    lopa: ChoiceCost | None = None
    """The cost, in the choice's last chunk."""
    trajectory: Trajectory | None = None
    """In the last chunk, if it was asked for."""


class ChatChunk(AnyChunk):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class TextLogprobs(ResponseModel):
    """Log-probabilities of a text completion's tokens, one entry per token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """The most likely tokens, and the decided one."""
    text_offset: list[int]
    """Characters of the answer before the token."""


class TextChoice(ResponseModel):
    """A finished choice, or in a stream the addition of a chunk to it."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: ChoiceFinishReason | None
    """Null in chunks but the last, and for what a deadline cut off."""
    lopa: ChoiceCost | None = None
    """The cost, with the choice's end."""
    trajectory: Trajectory | None = None
    """How the answer came about, with its end, if it was asked for."""


class Completion(WholeCompletion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class CompletionChunk(AnyChunk):
    object: Literal["text_completion"]
    choices: list[TextChoice]
