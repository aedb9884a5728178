"""Text completions: the request, and the answer in its shape."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from cluster.serving.messages import Finished, Piece, Prompt, TokenLogprob
from cluster.serving.openai.errors import bad_value, show
from cluster.serving.openai.generation_request import GenerationRequest
from cluster.serving.openai.request_model import LARGEST
from cluster.serving.openai.response_builder import Reply, finite
from cluster.serving.openai.response_models import (
    ChoiceCost,
    Completion,
    CompletionChunk,
    TextChoice,
    TextLogprobs,
)


def _prompts(value: Any) -> Any:
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if (
        isinstance(value, list)
        and value
        and (all(isinstance(item, str) for item in value) or all(map(_is_ids, value)))
    ):
        return value
    raise ValueError(
        f"got {show(value)}; allowed: text, a list of texts, a list of token ids (0 to {LARGEST}), "
        "or a list of such lists"
    )


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int and 0 <= item <= LARGEST for item in value)
    )


class CompletionRequest(GenerationRequest):
    """A text completion: no chat template is applied."""

    off: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GenerationRequest.off,
        "add_special_tokens": (True,),  # vLLM's
        "suffix": (),
    }

    prompt_field: ClassVar[str] = "prompt"
    listing_field: ClassVar[str] = "logprobs"

    prompt: Annotated[
        list[str | list[int]],
        BeforeValidator(
            _prompts,
            json_schema_input_type=str | list[str] | list[int] | list[list[int]],
        ),
    ]
    """Text, token ids, or several of either."""

    max_tokens: int | None = Field(default=None, ge=0, le=LARGEST)
    """Exact number of positions for the answer, which may end earlier by itself."""

    logprobs: int | None = Field(default=None, ge=0, le=20)
    """Add log-probabilities, and this many most likely tokens at each place."""

    echo: bool | None = None
    """Put the prompt's text in front of the answer. Not with `logprobs`."""

    @property
    def raw(self) -> bool:
        """Text goes in as it is, without the chat template."""
        return True

    @property
    def echoes(self) -> bool:
        """The prompt's text comes in front of the answer."""
        return bool(self.echo)

    def prompts(self) -> tuple[Prompt, ...]:
        """Each is text or token ids."""
        return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in self.prompt)

    def answer_tokens(self) -> int | None:
        """`max_tokens`."""
        return self.max_tokens

    def listed_tokens(self) -> int | None:
        """How many most likely tokens to list at each place; None: no log-probabilities at all."""
        if self.echo and self.logprobs is not None:
            raise bad_value("echo", "got true with logprobs; a prompt's tokens have none: leave one out")
        return self.logprobs


class CompletionReply(Reply):
    """The answer to a text completion request."""

    prefix = "cmpl"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._offsets: defaultdict[int, _Offsets] = defaultdict(_Offsets)

    def opening(self, index: int) -> None:
        """Nothing comes before the text."""

    def growth(self, piece: Piece) -> TextChoice:
        logprobs = self._logprobs(piece.logprobs, self._offsets[piece.choice])
        return TextChoice(index=piece.choice, text=piece.text, logprobs=logprobs, finish_reason=None)

    def closing(self, finished: Finished, cost: ChoiceCost) -> TextChoice:
        reason = finished.finish_reason
        return TextChoice(index=finished.choice, text="", logprobs=None, finish_reason=reason, lopa=cost)

    def choice(self, finished: Finished, cost: ChoiceCost) -> TextChoice:
        return TextChoice(
            index=finished.choice,
            text=finished.text,
            logprobs=self._logprobs(finished.logprobs, _Offsets()),
            finish_reason=finished.finish_reason,
            lopa=cost,
        )

    def chunk(self, **fields: Any) -> CompletionChunk:
        return CompletionChunk(object="text_completion", **fields)

    def completion(self, **fields: Any) -> Completion:
        return Completion(object="text_completion", **fields)

    def _logprobs(self, tokens: Sequence[TokenLogprob], offsets: _Offsets) -> TextLogprobs | None:
        if not self.job.logprobs:
            return None
        return TextLogprobs(
            tokens=[token.token for token in tokens],
            token_logprobs=[finite(token.logprob) for token in tokens],
            top_logprobs=[_likely(token) for token in tokens],
            text_offset=[offsets.pass_by(token.bytes if token.shown else b"") for token in tokens],
        )


class _Offsets:
    """Where the tokens of a choice begin in its text, counted in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def pass_by(self, token: bytes) -> int:
        """The place of the next token. One that continues a character stands where that begins."""
        place = self._characters
        self._characters += len(self._decoder.decode(token))
        return place


def _likely(token: TokenLogprob) -> dict[str, float]:
    """Different tokens may have the same text; the likelier one stays."""
    likely: dict[str, float] = {}
    for text, _, logprob in token.top:
        likely.setdefault(text, finite(logprob))
    likely.setdefault(token.token, finite(token.logprob))
    return likely
