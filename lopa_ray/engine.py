"""Engine: prompts in, results out, over whatever runs the steps.

`LocalEngine` runs them in this process, the actors' engine on a group of branch workers.
Both are this class with another `events`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self, TypeAlias, cast, overload

from lopa_ray.answer import Answer, GenerationResult, TraceStep
from lopa_ray.config import Config
from lopa_ray.errors import PromptError, PromptTooLongError
from lopa_ray.plan import Plan, StepOutcome
from lopa_ray.session import DecodeSession, Vocabulary
from lopa_ray.settings import GenerationSettings
from lopa_ray.tokenizer import Tokenizer, require_tokenizer

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages (mappings with role and content)."""

EngineEvent: TypeAlias = tuple[int, Plan, StepOutcome] | tuple[int, Exception]
"""(index of the request, what happened to it)."""

OnStep: TypeAlias = Callable[[int, TraceStep], None]


class Engine(ABC):
    """The public face of a decoder. Use as a context manager, or call `close`."""

    def __init__(self, config: Config, vocabulary: Vocabulary, tokenizer: Tokenizer | None) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer

    @abstractmethod
    def events(self, sessions: Sequence[DecodeSession]) -> Iterator[EngineEvent]:
        """Decode all sessions, in flight together as far as slots allow; yields every step of each.

        An error ends its own request only. Closing the iterator cancels what is unfinished.
        """

    def close(self) -> None:  # noqa: B027 - an engine may have nothing to close
        """Free whatever the engine holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Prompt → token ids. Text gets the checkpoint's chat template, if it has one, unless `raw`.

        Raises PromptError for text or messages without a tokenizer, messages without a chat
        template, and anything that is no prompt.
        """
        if isinstance(prompt, str):
            tokenizer = require_tokenizer(self.tokenizer, self.config.model.folder)
            if raw or not tokenizer.has_chat_template:
                return tokenizer.encode(prompt)
            return tokenizer.chat_prompt([{"role": "user", "content": prompt}])
        if _is_ids(prompt):
            return list(cast(Sequence[int], prompt))
        if (
            isinstance(prompt, Sequence)
            and prompt
            and all(isinstance(message, Mapping) for message in prompt)
        ):
            tokenizer = require_tokenizer(self.tokenizer, self.config.model.folder)
            return tokenizer.chat_prompt(cast(Sequence[Mapping[str, str]], prompt))
        if isinstance(prompt, Sequence) and not prompt:
            return []
        raise PromptError(
            f"got a prompt of type {type(prompt).__name__}; give text, token ids or chat messages"
        )

    def session(
        self, prompt: Prompt, settings: GenerationSettings | None = None, *, raw: bool = False
    ) -> DecodeSession:
        """A checked request. `settings` default to the configuration's.

        Raises PromptError for a prompt that cannot be decoded, PromptTooLongError for one that is
        too long with its answer.
        """
        settings = settings or self.config.decode
        ids = self.encode(prompt, raw=raw)
        room = self.config.model.max_model_len
        if len(ids) + settings.max_new_tokens > room:
            raise PromptTooLongError(
                f"{len(ids)} prompt tokens and max_new_tokens {settings.max_new_tokens} exceed max_model_len {room}; "
                "shorten the prompt, lower max_new_tokens or raise max_model_len"
            )
        return DecodeSession.create(ids, settings, self.vocabulary)

    def run(
        self, sessions: Sequence[DecodeSession], *, trace: bool = False, on_step: OnStep | None = None
    ) -> Iterator[tuple[int, GenerationResult | Exception]]:
        """Decode sessions; yields (index, result or error) as each one ends.

        `on_step` is called with (index, step) after every step of every request.
        """
        began = time.perf_counter()
        answers = [Answer(len(s.prompt), s.settings, s.vocabulary.eos_token_id, trace) for s in sessions]
        waiting = [index for index, session in enumerate(sessions) if not session.finished]
        for index in set(range(len(sessions))) - set(waiting):
            yield index, self._result(answers[index], began)
        for event in self.events([sessions[index] for index in waiting]):
            index = waiting[event[0]]
            if len(event) == 2:
                yield index, event[1]
                continue
            step = answers[index].add(event[1], event[2])
            if on_step is not None:
                on_step(index, step)
            if answers[index].finish_reason is not None:
                yield index, self._result(answers[index], began)

    def _result(self, answer: Answer, began: float) -> GenerationResult:
        text = None if self.tokenizer is None else self.tokenizer.decode(answer.text_ids)
        return answer.result(text, time.perf_counter() - began)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; it means one prompt
        self,
        prompts: str | Sequence[int],
        settings: GenerationSettings | None = None,
        *,
        raw: bool = False,
        trace: bool = False,
        on_step: OnStep | None = None,
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        settings: GenerationSettings | None = None,
        *,
        raw: bool = False,
        trace: bool = False,
        on_step: OnStep | None = None,
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[Prompt],
        settings: GenerationSettings | None = None,
        *,
        raw: bool = False,
        trace: bool = False,
        on_step: OnStep | None = None,
    ) -> GenerationResult | list[GenerationResult]:
        """Decode one prompt (text or token ids) to a result, or a list of prompts to a list of results.

        `raw` leaves the chat template out, `trace` keeps every step in the result. Raises
        PromptError before anything runs if a prompt cannot be decoded, and the first error that
        ends a request.
        """
        single = isinstance(prompts, str) or not isinstance(prompts, Sequence) or _is_ids(prompts)
        several = cast(Sequence[Prompt], [prompts] if single else prompts)
        sessions = [self.session(prompt, settings, raw=raw) for prompt in several]
        results: dict[int, GenerationResult] = {}
        for index, result in self.run(sessions, trace=trace, on_step=on_step):
            if isinstance(result, Exception):
                raise result
            results[index] = result
        if single:
            return results[0]
        return [results[index] for index in range(len(sessions))]


def _is_ids(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(type(token) is int for token in prompt)
