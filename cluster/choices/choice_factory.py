"""ChoiceFactory: from a request to the choices that answer it, with their sessions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cluster.choices.answer_format import AnswerFormat, answer_format, checked_schemas
from cluster.choices.choice import ChoiceState
from cluster.choices.messages import ChoicesRequest
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import override_settings
from lopa_ray.engine.constraint_cache import ConstraintCache
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import PromptTooLongError, SettingsError
from lopa_ray.text.tokenizer import require_tokenizer

SEED_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class _EncodedPrompt:
    ids: list[int]
    settings: GenerationSettings
    answer: AnswerFormat


class ChoiceFactory:
    def __init__(self, sessions: SessionFactory, *, position_bytes: int = 0, draws_anew: bool = True) -> None:
        """`position_bytes`: bytes of K/V that a committed position adds to the cache, for statistics. `draws_anew`:
        a request without a seed has another seed each time, and not the configuration's."""
        self._sessions, self._position_bytes = sessions, position_bytes
        self._draws_anew = draws_anew

    def create(self, request: ChoicesRequest, arrival_time: float) -> list[ChoiceState]:
        """The choices of a request; each of `n` draws with a seed of its own. `arrival_time`: on the monotonic clock.
        Raises PromptError and SettingsError."""
        return self._choices(request, self._encode(request), arrival_time)

    async def create_in_background(self, request: ChoicesRequest, arrival_time: float) -> list[ChoiceState]:
        """The same while the event loop goes on: prompts are encoded in a thread, and constraints compiled in other
        processes. Compilations that no other request waits for end when this is cancelled."""
        for schema in checked_schemas(request):
            # Functions that are not strict may have a schema that is refused.
            with suppress(SettingsError):
                await self._constraints.prepare_schema_size(schema, request.client)
        prompts = await asyncio.to_thread(self._encode, request)
        for prompt in prompts:
            await self._sessions.prepare(prompt.settings, request.client)
        return await asyncio.to_thread(self._choices, request, prompts, arrival_time)

    @property
    def _constraints(self) -> ConstraintCache:
        require_tokenizer(self._sessions.tokenizer)
        assert self._sessions.constraints is not None  # as it has a tokenizer
        return self._sessions.constraints

    def _encode(self, request: ChoicesRequest) -> list[_EncodedPrompt]:
        tokenizer = require_tokenizer(self._sessions.tokenizer)
        prompts = []
        for prompt in request.prompts:
            rendered = self._sessions.render(
                prompt,
                raw=request.raw,
                parse_special=request.parse_special,
                tools=request.tools,
                variables=request.template_variables,
            )
            answer = answer_format(request, tokenizer, rendered, self._constraints.schema_size)
            ids = self._sessions.encode_rendered(rendered) + tokenizer.encode_markup(answer.prefill)
            suffix_len = self._sessions.suffix_length(
                request.settings.get("suffix") or "", parse_special=request.raw and request.parse_special
            )
            overrides = {**request.settings, **answer.settings}
            settings = self._generation_settings(overrides, len(ids), suffix_len)
            prompts.append(_EncodedPrompt(ids, settings, answer))
        return prompts

    def _choices(
        self, request: ChoicesRequest, prompts: Sequence[_EncodedPrompt], arrival_time: float
    ) -> list[ChoiceState]:
        choices: list[ChoiceState] = []
        tokenizer = require_tokenizer(self._sessions.tokenizer)
        random_seed = secrets.randbelow(SEED_LIMIT)
        for prompt in prompts:
            settings = prompt.settings
            keeps_seed = "seed" in request.settings or not self._draws_anew
            first_seed = settings.seed if keeps_seed else random_seed
            for offset in range(request.n):
                if settings.temperature > 0:
                    settings = settings.replace(seed=(first_seed + offset) % SEED_LIMIT)
                session = self._sessions.create_session(
                    prompt.ids, settings, raw=request.raw, parse_special=request.parse_special
                )
                if request.logprobs and session.draft and not session.denoises_canvases:
                    raise SettingsError(
                        "draft: got one with log-probabilities; tokens of it that the model keeps were decided by no "
                        "pass, so they have none: leave one out",
                        setting="draft",
                    )
                session.client, session.priority = request.client, request.priority
                rest = (session, tokenizer, prompt.answer, self._position_bytes, arrival_time)
                choices.append(ChoiceState(request, len(choices), *rest))
        return choices

    def _generation_settings(
        self, overrides: Mapping[str, Any], prompt_len: int, suffix_len: int
    ) -> GenerationSettings:
        config = self._sessions.config
        overrides = dict(overrides)
        if "num_branches" in overrides:
            overrides.setdefault("branch_budget", "fixed")
        available = config.model.max_model_len - prompt_len
        if "max_new_tokens" not in overrides:
            if available < 1:
                raise PromptTooLongError(
                    f"{prompt_len} prompt tokens leave no room for an answer: prompt and answer together may "
                    f"have {config.model.max_model_len} tokens; shorten the prompt"
                )
            if suffix_len >= available:
                raise SettingsError(
                    f"suffix: got {suffix_len} tokens, which leave no room for an answer: they exceed max_model_len "
                    f"{config.model.max_model_len} with {prompt_len} prompt tokens; shorten it, or the prompt",
                    setting="suffix",
                )
            available -= suffix_len
            overrides["max_new_tokens"] = min(config.decode.max_new_tokens, available)
            overrides.setdefault("min_tokens", min(config.decode.min_tokens, available))
        return override_settings(config.decode, overrides)
