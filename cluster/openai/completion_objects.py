"""The objects of chat and text completions: OpenAI's, each with what this project adds under `lopa`.

Only fields that were set are sent: null stands where OpenAI sends null, and nothing where it sends nothing.
"""

from __future__ import annotations

from typing import Literal

from cluster.choices.messages import ChoiceFinishReason
from cluster.openai.lopa_models import CanvasNote, ChoiceCost, RequestCost
from cluster.openai.response_model import ResponseModel


class Usage(ResponseModel):
    """Tokens of a request; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


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
    finish_reason: ChoiceFinishReason | None
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
    finish_reason: ChoiceFinishReason | None
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
    finish_reason: ChoiceFinishReason | None
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
