"""Engine: prompts in, results out, over whatever runs the steps.

`LocalEngine` runs them in this process, the actors' engine on a group of branch workers.
Both are this class with another `events`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeAlias, cast, overload

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.result import GenerationResult, ResultBuilder, TraceStep
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.session_factory import Prompt, SessionFactory, is_token_ids
from lopa_ray.protocol.events import RequestEvent, RequestFailure, RequestStep

OnStep: TypeAlias = Callable[[int, TraceStep], None]

OnEvent: TypeAlias = Callable[[int, RequestStep], None]


class Engine(SessionFactory, ABC):
    """The public face of a decoder. Use as a context manager, or call `close`."""

    @abstractmethod
    def events(self, sessions: Sequence[DecodeSession]) -> Iterator[RequestEvent]:
        """Decode all sessions, in flight together as far as slots allow; yields every step of each.

        The `request_id` of an event is the index of its session.

        An error ends its own request only. Closing the iterator cancels what is unfinished.
        """

    def close(self) -> None:
        """Free whatever the engine holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        sessions: Sequence[DecodeSession],
        *,
        trace: bool = False,
        on_step: OnStep | None = None,
        on_event: OnEvent | None = None,
    ) -> Iterator[tuple[int, GenerationResult | Exception]]:
        """Decode sessions; yields (index, result or error) as each one ends.

        `on_step` is called with (index, step) after every step of every request, `on_event` with (index, event).
        """
        began = time.perf_counter()
        builders = [ResultBuilder(len(s.prompt), s.settings, s.end_token_ids, trace) for s in sessions]
        waiting = [index for index, session in enumerate(sessions) if not session.finished]
        for index in set(range(len(sessions))) - set(waiting):
            yield index, self._build_result(builders[index], began)
        for event in self.events([sessions[index] for index in waiting]):
            index = waiting[event.request_id]
            if isinstance(event, RequestFailure):
                yield index, event.error
                continue
            step = builders[index].add_step(event.plan, event.outcome)
            if on_step is not None:
                on_step(index, step)
            if on_event is not None:
                on_event(index, event)
            if builders[index].finish_reason is not None:
                yield index, self._build_result(builders[index], began)

    def _build_result(self, builder: ResultBuilder, began: float) -> GenerationResult:
        text = None if self.tokenizer is None else self.tokenizer.decode(builder.text_token_ids)
        return builder.build(text, time.perf_counter() - began)

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
        single = isinstance(prompts, str) or not isinstance(prompts, Sequence) or is_token_ids(prompts)
        several = cast(Sequence[Prompt], [prompts] if single else prompts)
        sessions = [self.create_session(prompt, settings, raw=raw) for prompt in several]
        results: dict[int, GenerationResult] = {}
        for index, result in self.run(sessions, trace=trace, on_step=on_step):
            if isinstance(result, Exception):
                raise result
            results[index] = result
        if single:
            return results[0]
        return [results[index] for index in range(len(sessions))]
