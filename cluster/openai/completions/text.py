"""Text completions: the request, and the builder of its responses."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from cluster.choices.messages import ChoiceFinished, TextDelta, TokenLogprob
from cluster.openai.answer_builder import clamp_logprob
from cluster.openai.completion_objects import Completion, CompletionChunk, TextChoice, TextLogprobs
from cluster.openai.completions.builder import MultiChoiceBuilder
from cluster.openai.completions.request import MultiChoiceRequest
from cluster.openai.errors import invalid_value, short_repr
from lopa_ray.config.http_field import MAX_INT
from lopa_ray.engine.session_factory import Prompt


def _as_list(value: Any) -> Any:
    if isinstance(value, str) or _is_token_ids(value):
        return [value]
    items = value if isinstance(value, list) else []
    if items and (all(isinstance(item, str) for item in items) or all(map(_is_token_ids, items))):
        return items
    raise ValueError(
        f"got {short_repr(value)}; allowed: text, a list of texts, a list of token ids (0 to {MAX_INT}), "
        "or a list of such lists"
    )


def _is_token_ids(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(type(item) is int and 0 <= item <= MAX_INT for item in value)


class CompletionRequest(MultiChoiceRequest):
    """A text completion: no chat template is applied."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "add_special_tokens": (True,)  # vLLM's
    }

    prompt_field: ClassVar[str] = "prompt"
    top_logprobs_field: ClassVar[str] = "logprobs"
    raw: ClassVar[bool] = True

    prompt: Annotated[
        list[str | list[int]],
        BeforeValidator(_as_list, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    """Text, token ids, or several of either."""

    suffix: str | None = None
    """Text after the answer: the model fills in what stands between prompt and suffix, `max_tokens` at most. The
    response has that alone."""

    parse_special: bool | None = None
    """False: read the names of special tokens in text (<|im_start|>) as characters, and not as these tokens."""

    max_tokens: int | None = Field(default=None, ge=0, le=MAX_INT)
    """Exact number of positions for the answer, which may end earlier by itself."""

    logprobs: int | None = Field(default=None, ge=0, le=20)
    """Add log-probabilities, and this many most likely tokens at each place."""

    echo: bool | None = None
    """Put the prompt's text before the answer. Not with `logprobs`: a prompt's tokens have no log-probabilities
    here, and `lopa eval` computes the log-likelihood of a text."""

    def choices_options(self) -> dict[str, Any]:
        own = {"echo": bool(self.echo), "parse_special": self.parse_special is not False}
        return super().choices_options() | own

    def giving_settings(self) -> dict[str, Any]:
        given = super().giving_settings()
        if not self.suffix:
            return given
        if given:
            raise invalid_value(
                "suffix", "excludes given_parts: they also say what stands after a hole; give one"
            )
        return {"suffix": self.suffix}

    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in self.prompt)

    def num_top_logprobs(self) -> int | None:
        if self.echo and self.logprobs is not None:
            raise invalid_value(
                "echo",
                "got true with logprobs; the model fills positions in any order, so a prompt's tokens have no "
                "log-probabilities given the text before them: leave one out, or run lopa eval for log-likelihoods",
            )
        return self.logprobs


class CompletionBuilder(MultiChoiceBuilder):
    id_prefix = "cmpl"
    new_completion = partial(Completion, object="text_completion")
    new_chunk = partial(CompletionChunk, object="text_completion")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._offsets: defaultdict[int, _TextOffsets] = defaultdict(_TextOffsets)

    def delta_chunk_choice(self, delta: TextDelta) -> TextChoice:
        logprobs = self._logprobs(delta.logprobs, self._offsets[delta.choice])
        return TextChoice(index=delta.choice, text=delta.text, logprobs=logprobs, finish_reason=None)

    def finish_chunk_choice(self, finished: ChoiceFinished) -> TextChoice:
        return TextChoice(index=finished.choice, text="", logprobs=None, **self.end_of_choice(finished))

    def completion_choice(self, finished: ChoiceFinished) -> TextChoice:
        logprobs = self._logprobs(finished.logprobs, _TextOffsets())
        whole = self.finish_chunk_choice(finished)
        return whole.model_copy(update={"text": finished.text, "logprobs": logprobs})

    def _logprobs(self, tokens: Sequence[TokenLogprob], offsets: _TextOffsets) -> TextLogprobs | None:
        if not self.request.logprobs:
            return None
        named = [_named_logprobs(token) for token in tokens]
        return TextLogprobs(
            tokens=[place[token.id][0] for place, token in zip(named, tokens, strict=True)],
            token_logprobs=[clamp_logprob(token.logprob) for token in tokens],
            top_logprobs=[dict(place.values()) for place in named],
            text_offset=[offsets.advance(token.in_text) for token in tokens],
        )


class _TextOffsets:
    """Offsets at which the tokens of a choice begin in its text, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def advance(self, token: bytes) -> int:
        """The offset of the next token. One that continues a character has the offset of that character."""
        offset = self._characters
        self._characters += len(self._decoder.decode(token))
        return offset


def _named_logprobs(token: TokenLogprob) -> dict[int, tuple[str, float]]:
    """Id → name and log-probability of each token of a place; names differ. A name is the text, or as in OpenAI's API
    the bytes of what is not text. Where several tokens have the same, it is the likeliest one's, and the others are
    called by their ids, as in vLLM."""
    named: dict[int, tuple[str, float]] = {}
    for id, text, raw, logprob in (*token.top, (token.id, token.token, token.bytes, token.logprob)):
        name = text if text.encode() == raw else "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
        taken = any(name == other for other, _ in named.values())
        named.setdefault(id, (f"token_id:{id}" if taken else name, clamp_logprob(logprob)))
    return named
