"""SessionFactory: makes checked sessions from prompts and settings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

from lopa_ray.config.decision_settings import DecisionType
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decisions.defaults import read_decision_defaults
from lopa_ray.decoding.decoders import new_session, override_settings
from lopa_ray.decoding.given_tokens import Encode, GivenTokens, encode_given
from lopa_ray.decoding.result import GenerationResult, ResultBuilder
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.config import Config
from lopa_ray.engine.constraint_cache import ConstraintCache
from lopa_ray.errors import PromptError, PromptTooLongError, SettingsError
from lopa_ray.execution.model_files import checkpoint_folder
from lopa_ray.model.hub.repository import short_name
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.scheduling.step_limit import StepLimit
from lopa_ray.text.chat_template import Message
from lopa_ray.text.raw_text import RawText
from lopa_ray.text.rendered_chat import RenderedChat
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages."""

RequestSettings: TypeAlias = GenerationSettings | Mapping[str, Any]
"""The decode settings of a request: all of them, or by name the settings that differ from the configuration's."""

RenderedPrompt: TypeAlias = RenderedChat | RawText | Sequence[int]
"""A prompt that is left to encode: a chat that went through its template, text that goes in as it is, or token ids."""


class SessionFactory:
    """Makes sessions for one model, given its configuration, its vocabulary and its tokenizer (None if it has none)."""

    def __init__(self, config: Config, vocabulary: Vocabulary, tokenizer: Tokenizer | None) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer
        limit_s = config.group.hung_after_s
        self.constraints = None if tokenizer is None else ConstraintCache(tokenizer, vocabulary, limit_s)

    def __repr__(self) -> str:
        model, name = self.config.model, type(self).__name__
        where = f"device={model.device!r}, workers={self.num_workers}"
        return f"{name}(model={short_name(model.path)!r}, {where})"

    @property
    def num_workers(self) -> int:
        return self.config.group.num_workers

    @cached_property
    def decision_temperatures(self) -> Mapping[DecisionType, float]:
        """See `DecisionDefaults.temperatures`. Raises CheckpointError."""
        return read_decision_defaults(checkpoint_folder(self.config.model)).temperatures

    def decode_settings(self, settings: RequestSettings | None = None, **changes: Any) -> GenerationSettings:
        """The decode settings of a request: `settings` with `changes` on top, which may name another decoder. A mapping
        has changes of the configuration's settings; None stands for these. Raises SettingsError."""
        if not isinstance(settings, GenerationSettings | Mapping | None):
            raise SettingsError(
                f"got settings of type {type(settings).__name__}; give a decoder's settings (LopaSettings, ...), or a "
                "mapping or keywords with decode settings"
            )
        if isinstance(settings, Mapping):
            changes, settings = {**settings, **changes}, None
        current = settings or self.config.decode
        return override_settings(current, changes) if changes else current

    def encode(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        parse_special: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a prompt: `render`, then `encode_rendered`."""
        rendered = self.render(prompt, raw=raw, parse_special=parse_special, tools=tools, variables=variables)
        return self.encode_rendered(rendered)

    def render(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        parse_special: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """A prompt in the form in which it is encoded. The chat template is applied to text if the checkpoint has one,
        unless `raw`. Special tokens are recognised in raw text alone, and there unless `parse_special` is false.
        `tools` and `variables`: see `Tokenizer.render_chat`. Raises PromptError without the tokenizer or template that
        the prompt needs, and for another type of prompt."""
        if isinstance(prompt, str):
            tokenizer = require_tokenizer(self.tokenizer)
            if raw or not tokenizer.has_chat_template:
                return RawText(prompt, raw and parse_special)
            return tokenizer.render_chat([{"role": "user", "content": prompt}])
        if is_token_ids(prompt):
            return cast(Sequence[int], prompt)
        if is_chat(prompt):
            tokenizer = require_tokenizer(self.tokenizer)
            messages = cast(Sequence[Message], prompt)
            return tokenizer.render_chat(messages, tools=tools, variables=variables)
        if isinstance(prompt, Sequence) and not prompt:
            return []
        kind = type(prompt).__name__
        raise PromptError(f"got a prompt of type {kind}; give text, token ids or chat messages")

    def encode_rendered(self, prompt: RenderedPrompt) -> list[int]:
        """The token ids of what `render` returned. Raises PromptError for text with a mask, or that has no encoding."""
        if isinstance(prompt, RenderedChat):
            return require_tokenizer(self.tokenizer).encode_chat(prompt)
        if isinstance(prompt, RawText):
            tokenizer = require_tokenizer(self.tokenizer)
            ids = tokenizer.encode(prompt.text, parse_special=prompt.parse_special)
            mask = self.vocabulary.mask_token_id
            if mask in ids:
                raise PromptError(
                    f"got text with the mask token {tokenizer.token_text(mask)}, which stands for an empty position; "
                    "remove it, or set parse_special to false, which reads special tokens as characters"
                )
            return ids
        return list(prompt)

    def create_session(
        self,
        prompt: Prompt,
        settings: RequestSettings | None = None,
        *,
        raw: bool = False,
        parse_special: bool = True,
        **changes: Any,
    ) -> DecodeSession:
        """A session for one prompt. `settings` and `changes`: see `decode_settings`; `render` for the others. Raises
        PromptError for a prompt that cannot be decoded, PromptTooLongError if prompt and answer are too long,
        SettingsError for a pattern or schema that is not supported or a first step beyond
        `model.max_num_batched_tokens`, and OverloadedError if the machine lacks memory or time to compile. A new
        pattern takes up to `group.hung_after_s` to compile, which `prepare` does for asynchronous programs."""
        settings = self.decode_settings(settings, **changes)
        ids = self.encode(prompt, raw=raw, parse_special=parse_special)
        encode = self._encode_given(raw and parse_special)
        given = GivenTokens.of(settings, encode)
        if settings.draft and isinstance(settings.draft, str):
            settings = settings.replace(draft=tuple(encode_given(settings.draft, "draft", encode)))
        room = self.config.model.max_model_len
        num_behind = given.end - settings.max_new_tokens if given.setting == "suffix" else 0
        if len(ids) + settings.max_new_tokens > room:
            raise PromptTooLongError(
                f"{len(ids)} prompt tokens and max_new_tokens {settings.max_new_tokens} exceed max_model_len {room}; "
                "shorten the prompt, lower max_new_tokens or raise max_model_len"
            )
        if len(ids) + settings.max_new_tokens + num_behind > room:
            raise SettingsError(
                f"suffix: got {num_behind} tokens; they exceed max_model_len {room} with {len(ids)} prompt tokens and "
                f"max_new_tokens {settings.max_new_tokens}; shorten it, or the prompt",
                setting="suffix",
            )
        if num_behind:
            # The canvas has the suffix, and its last position ends the answer.
            settings = settings.replace(max_new_tokens=settings.max_new_tokens + num_behind)
        constraint = self._constraint_cache(settings).constraint(settings) if settings.constrained else None
        session = new_session(ids, settings, self.vocabulary, constraint, given)
        if self.config.model.max_num_batched_tokens is not None and not session.finished:
            # A stream would have begun before the group refuses the request's first step. A copy plans it: the session
            # stays as it is.
            first_plan = session.with_state(session.export_state(), ()).plan()
            StepLimit(self.config.model.max_num_batched_tokens).check(first_plan.max_branch_rows)
        return session

    def suffix_length(self, suffix: str, *, parse_special: bool = False) -> int:
        """The tokens of a suffix, 0 for an empty one. Raises SettingsError for text that cannot be encoded."""
        return len(encode_given(suffix, "suffix", self._encode_given(parse_special))) if suffix else 0

    def _encode_given(self, parse_special: bool) -> Encode | None:
        if self.tokenizer is None:
            return None
        return partial(self.tokenizer.encode_later_part, parse_special=parse_special)

    def result_of(self, builder: ResultBuilder, began: float) -> GenerationResult:
        """A finished request that was submitted at `began`, by `time.perf_counter`."""
        text = None if self.tokenizer is None else self.tokenizer.decode(builder.text_token_ids)
        return builder.build(text, time.perf_counter() - began)

    async def prepare(self, settings: GenerationSettings, client: str = "") -> None:
        """Compile the constraint of `settings`, if they have one, so that `create_session` does not wait for it. See
        `ConstraintCache.prepare_constraint`."""
        if settings.constrained:
            await self._constraint_cache(settings).prepare_constraint(settings, client)

    def _constraint_cache(self, settings: GenerationSettings) -> ConstraintCache:
        if self.constraints is None:
            raise SettingsError(
                "got a pattern or words for the answer, but the checkpoint has no tokenizer "
                "that spells its tokens; add its files or leave guided_* and bad_words out",
                setting=settings.constraint_setting,
            )
        return self.constraints


def is_token_ids(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(type(token) is int for token in prompt)


def is_chat(prompt: object) -> bool:
    return (
        isinstance(prompt, Sequence) and len(prompt) > 0 and all(isinstance(one, Mapping) for one in prompt)
    )
