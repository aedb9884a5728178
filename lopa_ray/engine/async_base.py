"""AsyncEngine: the base class of engines for asyncio programs."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.decisions.encoded_input import DecisionInput
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.decoding.result import GenerationResult, ResultBuilder
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.decision_factory import AnyQuestion, ChangedDecisions, DecisionTask, new_decision
from lopa_ray.engine.generation_chunk import ChunkBuilder, GenerationChunk
from lopa_ray.engine.session_factory import Prompt, RequestSettings, SessionFactory
from lopa_ray.protocol.events import RequestEvent, RequestFailure


class AsyncEngine(SessionFactory, ABC):
    """An `Engine` with many requests of different tasks in flight together."""

    @abstractmethod
    def events(self, sessions: Sequence[RequestSession]) -> AsyncGenerator[RequestEvent, None]:
        """See `Engine.events`."""

    async def generate(
        self,
        prompt: Prompt,
        settings: RequestSettings | None = None,
        *,
        raw: bool = False,
        parse_special: bool = True,
        trace: bool = False,
        **changes: Any,
    ) -> GenerationResult:
        """Decode one prompt, in flight together with requests of other tasks. Arguments: see `Engine.generate`. Raises
        what `create_session` raises, and what ended the request."""
        began = time.perf_counter()
        session = await self._new_session(prompt, settings, raw, parse_special, changes)
        builder = ResultBuilder(session, trace)
        if not session.finished:
            async with aclosing(self.events([session])) as events:
                async for event in events:
                    if isinstance(event, RequestFailure):
                        raise event.error
                    builder.add_step(event.plan, event.outcome)
        return self.result_of(builder, began)

    async def decide(
        self,
        input: DecisionInput,
        questions: Sequence[AnyQuestion],
        settings: ChangedDecisions | None = None,
        **changes: Any,
    ) -> DecisionResult:
        """Answer typed questions about an input, with requests of other tasks in flight. See `Engine.decide`."""
        task = DecisionTask(input, questions)
        decision = await asyncio.to_thread(new_decision, self, task, settings, **changes)
        async with aclosing(self.events([decision.session])) as events:
            async for event in events:
                decision.add(event)
        return decision.result()

    async def stream(
        self,
        prompt: Prompt,
        settings: RequestSettings | None = None,
        *,
        raw: bool = False,
        parse_special: bool = True,
        **changes: Any,
    ) -> AsyncGenerator[GenerationChunk, None]:
        """Decode one prompt; yields its text and canvas after each step, and the result with the last. See `generate`.
        Closing the iterator cancels the request."""
        session = await self._new_session(prompt, settings, raw, parse_special, changes)
        builder = ChunkBuilder(session, self.tokenizer)
        if session.finished:
            yield builder.chunk()
            return
        async with aclosing(self.events([session])) as events:
            async for event in events:
                yield builder.add(event)

    async def _new_session(
        self,
        prompt: Prompt,
        settings: RequestSettings | None,
        raw: bool,
        parse_special: bool,
        changes: dict[str, Any],
    ) -> DecodeSession:
        decode = self.decode_settings(settings, **changes)
        await self.prepare(decode)
        # A long prompt takes a while to encode; the steps of other requests do not wait for it.
        create = partial(self.create_session, prompt, decode, raw=raw, parse_special=parse_special)
        return await asyncio.to_thread(create)
