"""The objects of responses: OpenAI's, each with what this project adds under `lopa`.

Only fields that were set are sent: null stands where OpenAI sends null, and nothing where it sends nothing.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class ResponseModel(BaseModel):
    """Base of what is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields that were set."""
        return self.model_dump(exclude_unset=True)


def dumps(value: Any) -> bytes:
    """JSON in ASCII: no client takes a line separator of Unicode for the end of an event."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


class Usage(ResponseModel):
    """Tokens of a request; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Cost(ResponseModel):
    """What a choice cost, or all of a request's choices together."""

    steps: int
    forwards: int
    """Branches that were evaluated."""
    tokens: int
    tpf: float
    """Tokens per forward: tokens ÷ steps."""
    seconds: float
    """From arrival to the last step."""
    queued_seconds: float
    """From arrival to the first step."""
    phases_seconds: dict[str, float]
    """Per phase, over the steps that the choice took part in."""
    commit_bytes: int
    """K/V that entered the cache."""


class ChoiceCost(Cost):
    """What a choice cost."""

    seed: int
    """Sent again as the request's `seed`, with n = 1, it gives this choice."""


class Trace(ResponseModel):
    """Steps in Chrome's trace format."""

    traceEvents: list[dict[str, Any]]  # noqa: N815 - Chrome's name


class RequestCost(Cost):
    """What all choices cost together; times are the longest of them, but phases are summed."""

    trace: Trace | None = None
    """If it was asked for."""


class CanvasCell(ResponseModel):
    """A position of the canvas."""

    t: str
    """Its text; empty while it is masked."""
    s: int
    """The step that decided it; 0 while it is masked."""


class CanvasBranch(ResponseModel):
    """An evaluated branch."""

    name: str
    """anchor, or +1, +2 … for lookahead branches."""
    tried: str
    """What it filled beyond the anchor."""
    confidence: float | None
    """The highest wins. Null if it has none."""


class Canvas(ResponseModel):
    """A choice after one of its steps."""

    choice: int
    step: int
    seconds: float
    """Since the request arrived."""
    cells: list[CanvasCell]
    branches: list[CanvasBranch]
    winner: int
    """Index into `branches`."""


class CanvasNote(ResponseModel):
    """The `lopa` object of a chunk that shows the canvas; such a chunk has no choices."""

    canvas: Canvas


class Envelope(ResponseModel):
    """What every completion, and every chunk of one, begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class TopLogprob(ResponseModel):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A decided token, in the pass that decided it."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseModel):
    """Log-probabilities of a chat completion's tokens."""

    content: list[ChatLogprob]
    refusal: None


class CalledFunction(ResponseModel):
    """A function and what it is called with."""

    name: str
    arguments: str
    """JSON text."""


class MadeCall(ResponseModel):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(ResponseModel):
    """An answer."""

    role: Literal["assistant"]
    content: str | None
    """Null if the answer has calls alone."""
    refusal: None
    reasoning_content: str | None = None
    """What the model wrote between `<think>` and `</think>`."""
    tool_calls: list[MadeCall] | None = None


class ChatChoice(ResponseModel):
    """A finished choice."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    """Null only for what a deadline cut off."""
    lopa: ChoiceCost


class ChatCompletion(Envelope):
    """A chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    lopa: RequestCost


class CalledFunctionChunk(ResponseModel):
    """What a chunk adds to a call's function."""

    name: str | None = None
    arguments: str


class CallChunk(ResponseModel):
    """What a chunk adds to a call: id, type and name in its first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionChunk


class ChatDelta(ResponseModel):
    """What a chunk adds to a message: all fields in the first, one part of it in the next ones, nothing in the last."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[CallChunk] | None = None


class ChatChunkChoice(ResponseModel):
    """What a chunk adds to a choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    lopa: ChoiceCost | None = None
    """In the choice's last chunk."""


class ChatChunk(Envelope):
    """An event of a chat completion's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    lopa: RequestCost | CanvasNote | None = None


class TextLogprobs(ResponseModel):
    """Log-probabilities of a text completion's tokens, one entry per token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """The most likely tokens, and the decided one."""
    text_offset: list[int]
    """Characters of the answer in front of the token."""


class TextChoice(ResponseModel):
    """A finished choice, or in a stream what a chunk adds to it."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None
    """Null in chunks but the last, and for what a deadline cut off."""
    lopa: ChoiceCost | None = None
    """With the choice's end."""


class Completion(Envelope):
    """A text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage
    lopa: RequestCost


class CompletionChunk(Envelope):
    """An event of a text completion's stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage | None = None
    lopa: RequestCost | CanvasNote | None = None


class ErrorDetail(ResponseModel):
    """What went wrong."""

    message: str
    """What was got, what is allowed, what to do."""
    type: str
    param: str | None
    """The request's field that is wrong."""
    code: str


class ErrorObject(ResponseModel):
    """An error, as a response's body or as an event of a stream."""

    error: ErrorDetail
    partial: ChatCompletion | Completion | dict[str, Any] | None = None
    """What was decided by the deadline, if `lopa.partial` asked for it; of the Responses API a ResponseObject."""


class ModelCard(ResponseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelCard]
