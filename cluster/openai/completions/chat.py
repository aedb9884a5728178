"""Chat completions: the request, and the builder of its responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from cluster.choices.messages import ChoiceFinished, ChoicesRequest, TextDelta, TokenLogprob, ToolCallDelta
from cluster.openai.answer_builder import clamp_logprob
from cluster.openai.completion_objects import (
    AssistantMessage,
    CallChunk,
    CalledFunction,
    CalledFunctionChunk,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    MadeCall,
    TopLogprob,
)
from cluster.openai.completions.builder import MultiChoiceBuilder
from cluster.openai.completions.request import MultiChoiceRequest
from cluster.openai.errors import invalid_value
from cluster.openai.tool_request import ToolRequest
from cluster.openai.tools import ToolChoice, Tools, new_call_id
from lopa_ray.config.http_field import MAX_INT
from lopa_ray.engine.session_factory import Prompt
from lopa_ray.text.chat_message import ChatMessage


class ChatRequest(ToolRequest, MultiChoiceRequest):
    """A chat completion."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        # OpenAI's
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "verbosity": (),
        "web_search_options": (),
        # vLLM's
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "chat_template": (),
        "continue_final_message": (False,),
        "documents": ([],),
        "echo": (False,),
        # Mercury's
        "realtime": (False,),
        "reasoning_summary": (False,),
        "reasoning_summary_wait": (False,),
    }

    prompt_field: ClassVar[str] = "messages"
    top_logprobs_field: ClassVar[str] = "top_logprobs"

    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    """The chat so far."""

    tools: Tools | None = None
    """Functions that the answer may call."""

    tool_choice: ToolChoice = None
    """none: no calls; auto (the default with `tools`): as the model likes; required: a call of one of the functions; or
    a function to call; or some of the functions, for auto or required."""

    reasoning_effort: str | None = Field(default=None, max_length=32)
    """The effort, for templates that use it; none, or instant as Mercury calls it: also `enable_thinking` is false."""

    diffusing: bool | None = None
    """In a stream, each `content` is the whole text so far, and replaces the one before it."""

    include_reasoning: bool | None = None
    """False: leave the reasoning out of the response."""

    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Exact number of positions for the answer, which may end earlier by itself."""

    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    """The newer name of `max_tokens`."""

    logprobs: bool | None = None
    """Add the log-probability of every token of the answer, in the pass that decided it."""

    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Add this many most likely tokens at each place. Above 0 only with `logprobs`."""

    @property
    def max_tokens_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def max_new_tokens(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise invalid_value(
                "max_tokens", f"got {old}, and max_completion_tokens {new}; they mean the same: give one"
            )
        return super().max_new_tokens()

    def prompts(self) -> tuple[Prompt, ...]:
        return (tuple(message.template_message() for message in self.messages),)

    def functions(self) -> list[dict[str, Any]]:
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    def effort(self) -> str | None:
        return self.reasoning_effort

    def choices_options(self) -> dict[str, Any]:
        if self.diffusing and self.stream and self.logprobs:
            message = "got true with logprobs: text that replaces other text adds no tokens; leave one out"
            raise invalid_value("diffusing", message)
        return super().choices_options() | {"diffusing": bool(self.diffusing)}

    def num_top_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise invalid_value(
                "top_logprobs", f"got {self.top_logprobs} without logprobs; give logprobs: true as well"
            )
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatBuilder(MultiChoiceBuilder):
    id_prefix = "chatcmpl"
    new_completion = partial(ChatCompletion, object="chat.completion")
    new_chunk = partial(ChatChunk, object="chat.completion.chunk")

    def __init__(self, model: str, http_request: ChatRequest, request: ChoicesRequest) -> None:
        super().__init__(model, http_request, request)
        self._include_reasoning = http_request.include_reasoning is not False

    def start_chunk_choice(self, index: int) -> ChatChunkChoice:
        delta = ChatDelta(role="assistant", content="", refusal=None)
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)

    def delta_chunk_choice(self, delta: TextDelta) -> ChatChunkChoice | None:
        hidden = bool(delta.reasoning) and not self._include_reasoning
        diffuses = self.request.diffusing and delta.tool_call is None
        if hidden and not delta.logprobs and not diffuses:
            return None
        added: dict[str, Any] = {"content": delta.text}
        if delta.reasoning and not hidden:
            added = {"reasoning_content": delta.reasoning} | (added if diffuses else {})
        elif delta.tool_call is not None:
            added = {"tool_calls": [_call_chunk(delta.tool_call)]}
        logprobs = self._logprobs(delta.logprobs)
        return ChatChunkChoice(
            index=delta.choice, delta=ChatDelta(**added), logprobs=logprobs, finish_reason=None
        )

    def finish_chunk_choice(self, finished: ChoiceFinished) -> ChatChunkChoice:
        end = self.end_of_choice(finished)
        return ChatChunkChoice(index=finished.choice, delta=ChatDelta(), logprobs=None, **end)

    def completion_choice(self, finished: ChoiceFinished) -> ChatChoice:
        optional: dict[str, Any] = {}
        if finished.reasoning and self._include_reasoning:
            optional["reasoning_content"] = finished.reasoning
        if finished.tool_calls:
            functions = [CalledFunction(**asdict(call)) for call in finished.tool_calls]
            optional["tool_calls"] = [
                MadeCall(id=new_call_id(), type="function", function=function) for function in functions
            ]
        # As in OpenAI's API: null together with calls, otherwise text, which may be empty.
        content = None if finished.tool_calls and not finished.text else finished.text
        return ChatChoice(
            index=finished.choice,
            message=AssistantMessage(role="assistant", content=content, refusal=None, **optional),
            logprobs=self._logprobs(finished.logprobs),
            **self.end_of_choice(finished),
        )

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return ChatLogprobs(content=chat_logprobs(tokens), refusal=None) if self.request.logprobs else None


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> list[ChatLogprob]:
    return [
        ChatLogprob(
            token=token.token,
            logprob=clamp_logprob(token.logprob),
            bytes=list(token.bytes),
            top_logprobs=[
                TopLogprob(token=text, logprob=clamp_logprob(logprob), bytes=list(raw))
                for _, text, raw, logprob in token.top
            ],
        )
        for token in tokens
    ]


def _call_chunk(delta: ToolCallDelta) -> CallChunk:
    if delta.name is None:  # only the first chunk has id and name
        return CallChunk(index=delta.index, function=CalledFunctionChunk(arguments=delta.arguments))
    function = CalledFunctionChunk(name=delta.name, arguments=delta.arguments)
    return CallChunk(index=delta.index, id=new_call_id(), type="function", function=function)
