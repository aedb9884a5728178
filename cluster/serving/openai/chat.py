"""Chat completions: the request, and the builder of its responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cluster.serving.engine_messages import ChoiceFinished, Prompt, TextDelta, TokenLogprob
from cluster.serving.openai.errors import invalid_value, short_repr
from cluster.serving.openai.generation_request import GenerationRequest
from cluster.serving.openai.request_model import MAX_INT, RequestModel
from cluster.serving.openai.response_builder import ResponseBuilder, clamp_logprob
from cluster.serving.openai.response_models import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    ChoiceCost,
    TopLogprob,
)


class TextPart(RequestModel):
    """A piece of a message's text."""

    type: Literal["text"]
    """Only text is understood."""

    text: str
    """Pieces are joined with nothing between them."""


def _as_parts(value: Any) -> Any:
    if not isinstance(value, str | list) or (not value and isinstance(value, list)):
        raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of text parts")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class ChatMessage(RequestModel):
    """A message of a chat. Clients hand answers back with all their empty fields."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "name": (),
        "reasoning": ("",),
        "reasoning_content": ("",),
        "refusal": ("",),
        "tool_call_id": (),
        "tool_calls": ([],),
    }

    role: Literal["system", "developer", "user", "assistant"]
    """developer is another word for system."""

    content: Annotated[
        list[TextPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart])
    ]
    """Text, or parts that are text."""

    @property
    def text(self) -> str:
        """The whole of its content."""
        return "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """A chat completion."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GenerationRequest.unsupported_fields,
        # OpenAI's
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "parallel_tool_calls": (True, False),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "reasoning_effort": ("none",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
        # vLLM's
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "continue_final_message": (False,),
        "documents": ([],),
        "echo": (False,),
        "include_reasoning": (True, False),
    }

    prompt_field: ClassVar[str] = "messages"
    top_logprobs_field: ClassVar[str] = "top_logprobs"

    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    """The chat so far."""

    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Exact number of positions for the answer, which may end earlier by itself."""

    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    """The newer name of `max_tokens`."""

    logprobs: bool | None = None
    """Add the log-probability of every token of the answer, in the pass that decided it."""

    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Add this many most likely tokens at each place. Only with `logprobs`."""

    @property
    def max_tokens_field(self) -> str:
        """Whichever of the two names was used."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def raw(self) -> bool:
        """Chats go through the chat template."""
        return False

    def prompts(self) -> tuple[Prompt, ...]:
        """One chat, in the roles that templates know."""
        role = {"developer": "system"}
        return (tuple({"role": role.get(m.role, m.role), "content": m.text} for m in self.messages),)

    def max_new_tokens(self) -> int | None:
        """`max_tokens`, under whichever name. Raises ApiError for two that differ."""
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise invalid_value(
                "max_tokens", f"got {old}, and max_completion_tokens {new}; they mean the same: give one"
            )
        return new if old is None else old

    def num_top_logprobs(self) -> int | None:
        """How many most likely tokens to list at each place; None: no log-probabilities at all."""
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid_value(
                "top_logprobs", f"got {self.top_logprobs} without logprobs; give logprobs: true as well"
            )
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatResponseBuilder(ResponseBuilder):
    """Builds the responses to a chat request."""

    id_prefix = "chatcmpl"

    def start_chunk_choice(self, index: int) -> ChatChunkChoice:
        delta = ChatDelta(role="assistant", content="", refusal=None)
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)

    def delta_chunk_choice(self, delta: TextDelta) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=delta.choice,
            delta=ChatDelta(content=delta.text),
            logprobs=self._logprobs(delta.logprobs),
            finish_reason=None,
        )

    def finish_chunk_choice(self, finished: ChoiceFinished, cost: ChoiceCost) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=finished.choice,
            delta=ChatDelta(),
            logprobs=None,
            finish_reason=finished.finish_reason,
            lopa=cost,
        )

    def completion_choice(self, finished: ChoiceFinished, cost: ChoiceCost) -> ChatChoice:
        return ChatChoice(
            index=finished.choice,
            message=AssistantMessage(role="assistant", content=finished.text, refusal=None),
            logprobs=self._logprobs(finished.logprobs),
            finish_reason=finished.finish_reason,
            lopa=cost,
        )

    def chunk_object(self, **fields: Any) -> ChatChunk:
        return ChatChunk(object="chat.completion.chunk", **fields)

    def completion_object(self, **fields: Any) -> ChatCompletion:
        return ChatCompletion(object="chat.completion", **fields)

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not self.request.logprobs:
            return None
        content = [
            ChatLogprob(
                token=token.token,
                logprob=clamp_logprob(token.logprob),
                bytes=list(token.bytes),
                top_logprobs=[
                    TopLogprob(token=text, logprob=clamp_logprob(logprob), bytes=list(raw))
                    for text, raw, logprob in token.top
                ],
            )
            for token in tokens
        ]
        return ChatLogprobs(content=content, refusal=None)
