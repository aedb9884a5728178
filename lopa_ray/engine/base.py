"""Engine: the base class of all engines, which decode prompts to results. A subclass runs the steps in `events`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Self, TypeAlias, cast, overload

from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.decisions.encoded_input import DecisionInput
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.decoding.result import GenerationResult, ResultBuilder
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.engine.decision_factory import AnyQuestion, ChangedDecisions, DecisionTask, new_decision
from lopa_ray.engine.generation_chunk import ChunkBuilder, GenerationChunk
from lopa_ray.engine.session_factory import Prompt, RequestSettings, SessionFactory, is_chat, is_token_ids
from lopa_ray.protocol.events import RequestEvent, RequestFailure, RequestStep
from lopa_ray.text.chat_template import Message

OnStep: TypeAlias = Callable[[int, TraceStep], None]

OnEvent: TypeAlias = Callable[[int, RequestStep], None]


class Engine(SessionFactory, ABC):
    """The public interface of a decoder. Use it as a context manager, or call `close`. It may be used from several
    threads: requests of simultaneous calls are in flight together, in the same steps."""

    @abstractmethod
    def events(self, sessions: Sequence[RequestSession]) -> Iterator[RequestEvent]:
        """Yields an event for every step of every session; its `request_key` is the index of the session. As many
        sessions are in flight at once as there are slots. An error ends its own request only. Closing the iterator
        cancels all unfinished requests."""

    def close(self) -> None:
        """Free the resources of the engine."""

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
        """Decode sessions; yields (index, result or error) when each one ends. After every step of every request,
        `on_step` is called with (index, step) and `on_event` with (index, event)."""
        began = time.perf_counter()
        builders = [ResultBuilder(session, trace) for session in sessions]
        waiting = [index for index, session in enumerate(sessions) if not session.finished]
        for index in set(range(len(sessions))) - set(waiting):
            yield index, self.result_of(builders[index], began)
        for event in self.events([sessions[index] for index in waiting]):
            index = waiting[event.request_key]
            if isinstance(event, RequestFailure):
                yield index, event.error
                continue
            step = builders[index].add_step(event.plan, event.outcome)
            if on_step is not None:
                on_step(index, step)
            if on_event is not None:
                on_event(index, event)
            if builders[index].finish_reason is not None:
                yield index, self.result_of(builders[index], began)

    def decide(
        self,
        input: DecisionInput,
        questions: Sequence[AnyQuestion],
        settings: ChangedDecisions | None = None,
        **changes: Any,
    ) -> DecisionResult:
        """Answer typed questions about an input, a text or messages of a chat; a question that is a text is a
        predicate. `settings` and `changes` override the configuration's section `decisions`. Raises what `new_decision`
        raises, and what ended the request."""
        ((_, result),) = self.decide_all([DecisionTask(input, questions)], settings, **changes)
        if isinstance(result, Exception):
            raise result
        return result

    def decide_all(
        self, tasks: Sequence[DecisionTask], settings: ChangedDecisions | None = None, **changes: Any
    ) -> Iterator[tuple[int, DecisionResult | Exception]]:
        """Answer the questions of many inputs, as `decide`; yields (index, result or error) when each one ends. Errors
        of the arguments are raised before anything runs."""
        pending = [new_decision(self, task, settings, **changes) for task in tasks]
        for event in self.events([decision.session for decision in pending]):
            if isinstance(event, RequestFailure):
                yield event.request_key, event.error
                continue
            pending[event.request_key].add(event)
            if event.outcome.finish_reason is not None:
                yield event.request_key, pending[event.request_key].result()

    def stream(
        self,
        prompt: Prompt,
        settings: RequestSettings | None = None,
        *,
        raw: bool = False,
        parse_special: bool = True,
        **changes: Any,
    ) -> Generator[GenerationChunk, None, None]:
        """Decode one prompt; the generator yields its text and canvas after each step, and the result with the last.
        Arguments: see `generate`. Raises PromptError and SettingsError at once; the generator raises what ends the
        request. Closing it cancels the request."""
        session = self.create_session(prompt, settings, raw=raw, parse_special=parse_special, **changes)
        return self._chunks(session, ChunkBuilder(session, self.tokenizer))

    def _chunks(self, session: DecodeSession, chunks: ChunkBuilder) -> Generator[GenerationChunk, None, None]:
        if session.finished:
            yield chunks.chunk()
            return
        for event in self.events([session]):
            yield chunks.add(event)

    @overload
    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[Message],
        settings: RequestSettings | None = None,
        *,
        raw: bool = False,
        parse_special: bool = True,
        trace: bool = False,
        on_step: OnStep | None = None,
        **changes: Any,
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        settings: RequestSettings | None = None,
        *,
        raw: bool = False,
        parse_special: bool = True,
        trace: bool = False,
        on_step: OnStep | None = None,
        **changes: Any,
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        settings: RequestSettings | None = None,
        *,
        raw: bool = False,
        parse_special: bool = True,
        trace: bool = False,
        on_step: OnStep | None = None,
        **changes: Any,
    ) -> GenerationResult | list[GenerationResult]:
        """Decode one prompt (text, token ids, or the messages of a chat) to a result, or a list of prompts to a list of
        results. `settings` and `changes`: see `decode_settings` (`engine.generate(prompt, num_branches=2)`); `raw` and
        `parse_special`: see `render`. With `trace`, the result holds every step. Raises PromptError or SettingsError
        before anything runs, and later the first error that ends a request."""
        single = not isinstance(prompts, Sequence) or isinstance(prompts, str)
        single = single or is_token_ids(prompts) or is_chat(prompts)
        several = cast(Sequence[Prompt], [prompts] if single else prompts)
        decode = self.decode_settings(settings, **changes)
        options: dict[str, Any] = {"raw": raw, "parse_special": parse_special}
        sessions = [self.create_session(prompt, decode, **options) for prompt in several]
        results: dict[int, GenerationResult] = {}
        for index, result in self.run(sessions, trace=trace, on_step=on_step):
            if isinstance(result, Exception):
                raise result
            results[index] = result
        if single:
            return results[0]
        return [results[index] for index in range(len(sessions))]
