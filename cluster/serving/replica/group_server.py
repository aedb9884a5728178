"""GroupServer: one decode group behind Ray Serve; `cluster.serving.app` makes a deployment of it. Master and workers
are a replica's children, in its placement group, so they end with it however it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from actors.async_engine import AsyncRayEngine
from cluster.choices.choice import ChoiceState
from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.decision_message import DecisionMessage
from cluster.choices.messages import (
    ChoiceFinished,
    ChoicesOutput,
    ChoicesRequest,
    PromptToTokenize,
    RequestAccepted,
    TokenizeResponse,
)
from cluster.serving.protocol.group import Group
from cluster.serving.protocol.messages import GroupState, ModelDefaults, RequestRejected, WorkersOfGroup
from cluster.serving.replica.metrics import GroupMetrics
from cluster.serving.replica.request_defaults import request_defaults
from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.engine.config import Config
from lopa_ray.engine.decision_factory import DecisionTask, new_decision
from lopa_ray.errors import ClusterError, DeadlineError, LopaError, OverloadedError, PromptError, RequestError
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.text.tokenizer import require_tokenizer

REQUESTS_PER_SLOT = 32  # of one client, unless `group.max_requests_per_client` is set
logger = logging.getLogger("lopa.group")


@dataclass(slots=True)
class _RequestRecord:
    arrival_time: float
    accepted: bool = False  # it was checked


class GroupServer(Group):
    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        """`config`: the sections of a configuration, as plain values. `start` does the rest."""
        self._engine: AsyncRayEngine | None = None
        self._model = model
        self._config = Config.parse(dict(config))
        self._metrics = GroupMetrics(model)
        self._sleeps = False
        self._requests: Counter[str] = Counter()  # client → its requests that have not ended

    async def start(self) -> None:
        """Start master and workers. Raises CheckpointError, SettingsError, WorkerLostError."""
        self._engine = await AsyncRayEngine.start(
            self._config, on_step=self._metrics.on_step, name=self._model
        )
        self._choices = ChoiceFactory(self._engine, position_bytes=self._engine.position_bytes)
        logger.info(f"model {self._model!r} is ready on {self._config.group.num_workers} workers")

    @property
    def _started_engine(self) -> AsyncRayEngine:
        if self._engine is None:
            raise ClusterError(f"the group of model {self._model!r} is not started; call start first")
        return self._engine

    # Calls, as the ingress makes them

    async def call(self, name: str, *arguments: Any) -> Any:
        """The answer of a method of `Group`, or RequestRejected for an error about the request."""
        try:
            return await getattr(self, name)(*arguments)
        except (RequestError, OverloadedError) as error:
            return RequestRejected(error)

    async def stream(
        self, name: str, request: ChoicesRequest | DecisionMessage
    ) -> AsyncGenerator[ChoicesOutput | DecisionResult | RequestRejected, None]:
        try:
            async with aclosing(getattr(self, name)(request)) as outputs:
                async for output in outputs:
                    yield output
        except (RequestError, OverloadedError) as error:
            yield RequestRejected(error)

    async def generate(self, request: ChoicesRequest) -> AsyncGenerator[ChoicesOutput, None]:
        with self._recorded(request) as record:
            choices = await self._choices.create_in_background(request, record.arrival_time)
            record.accepted = True
            yield RequestAccepted(
                tuple(choice.prompt_tokens for choice in choices[:: request.n]),
                max(choice.session.settings.max_new_tokens for choice in choices),
            )
            async for output in self._decode_choices(request, choices):
                yield output
                if isinstance(output, ChoiceFinished):
                    self._metrics.on_choice_finished(output)

    async def decide(self, request: DecisionMessage) -> AsyncGenerator[DecisionResult, None]:
        with self._recorded(request) as record:
            engine, task = self._started_engine, DecisionTask(request.input, request.questions)
            decision = await asyncio.to_thread(new_decision, engine, task, request.settings)
            decision.session.client, decision.session.priority = request.client, request.priority
            record.accepted = True
            # The event loop has the monotonic clock as well.
            deadline = request.deadline_s and record.arrival_time + request.deadline_s
            try:
                async with asyncio.timeout_at(deadline):
                    async with aclosing(engine.events([decision.session])) as events:
                        async for event in events:
                            decision.add(event)
            except TimeoutError:
                raise DeadlineError(
                    f"not finished after {request.deadline_s:g} s; raise the deadline or ask fewer questions"
                ) from None
            self._metrics.on_decision_finished(len(request.questions))
            yield decision.result()

    @contextmanager
    def _recorded(self, request: ChoicesRequest | DecisionMessage) -> Iterator[_RequestRecord]:
        """Counts a request while it runs, and records how it ended. Raises OverloadedError if a client has too many."""
        record, outcome = _RequestRecord(time.monotonic()), "error"
        self._requests[request.client] += 1
        try:
            limit = self._config.group.max_requests_per_client
            limit = limit or REQUESTS_PER_SLOT * self._config.model.max_num_seqs
            if self._requests[request.client] > limit:
                raise OverloadedError(
                    f"the queue is full: this client has {limit} requests at this group; try again when one has ended"
                )
            if self._sleeps:
                raise ClusterError(f"model {self._model!r} sleeps; try again when it is awake")
            yield record
            outcome = "finished"
        except DeadlineError:
            outcome = "deadline"
            raise
        except LopaError as error:
            outcome = "error" if record.accepted else "refused"
            if record.accepted:
                logger.warning(f"request {request.id}: {type(error).__name__}: {error}")
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self._requests[request.client] -= 1
            if not self._requests[request.client]:
                del self._requests[request.client]
            self._metrics.on_request_finished(outcome, time.monotonic() - record.arrival_time)

    async def _decode_choices(
        self, request: ChoicesRequest, choices: list[ChoiceState]
    ) -> AsyncGenerator[ChoicesOutput, None]:
        """All choices at once; their outputs as they come, until each has finished or one fails."""
        queue: asyncio.Queue[ChoicesOutput | Exception] = asyncio.Queue()
        tasks = [asyncio.create_task(self._decode_choice(choice, queue)) for choice in choices]
        unfinished = {choice.index: choice for choice in choices}
        deadline = request.deadline_s and choices[0].arrival_time + request.deadline_s
        late = False
        try:
            while unfinished:
                # On a busy machine outputs may wait here at the deadline, whose text the choices count as sent.
                if late and queue.empty():
                    for choice in unfinished.values():
                        for output in choice.finish_at_deadline():
                            yield output
                    return
                try:
                    async with asyncio.timeout_at(None if late else deadline):
                        next_output = await queue.get()
                except TimeoutError:
                    if not request.partial:
                        raise DeadlineError(
                            f"not finished after {request.deadline_s:g} s; raise the deadline, lower max_tokens, or "
                            "set partial to get what was decided by then"
                        ) from None
                    late = True
                    continue
                if isinstance(next_output, Exception):
                    raise next_output
                yield next_output
                if isinstance(next_output, ChoiceFinished):
                    del unfinished[next_output.choice]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _decode_choice(
        self, choice: ChoiceState, queue: asyncio.Queue[ChoicesOutput | Exception]
    ) -> None:
        try:
            for output in choice.start():
                queue.put_nowait(output)
            if choice.session.finished:
                return
            async with aclosing(self._started_engine.events([choice.session])) as events:
                async for event in events:
                    if isinstance(event, RequestFailure):
                        raise event.error
                    for output in choice.add_step(event):
                        queue.put_nowait(output)
                    if choice.finished:
                        return
        except Exception as error:
            queue.put_nowait(error)

    # Text and tokens

    async def tokenize(self, given: PromptToTokenize) -> TokenizeResponse:
        # A long text takes a while; steps do not wait for it.
        return await asyncio.to_thread(self._tokenize, given)

    def _tokenize(self, given: PromptToTokenize) -> TokenizeResponse:
        engine = self._started_engine
        tokenizer = require_tokenizer(engine.tokenizer)
        if isinstance(given.prompt, str):
            tokens = tokenizer.encode(
                given.prompt, add_special_tokens=given.add_special_tokens, parse_special=given.parse_special
            )
        else:
            tokens = engine.encode(given.prompt, tools=given.tools, variables=given.template_variables)
        return TokenizeResponse(
            count=len(tokens),
            max_model_len=self._config.model.max_model_len,
            tokens=tokens,
            token_strs=list(map(tokenizer.token_string, tokens)),
        )

    async def detokenize(self, tokens: Sequence[int]) -> str:
        engine = self._started_engine
        for index, token in enumerate(tokens):
            if not 0 <= token < engine.vocabulary.size:
                raise PromptError(
                    f"token {index} is {token}, but the vocabulary has ids 0 to {engine.vocabulary.size - 1}; "
                    "correct it"
                )
        tokenizer = require_tokenizer(engine.tokenizer)
        return await asyncio.to_thread(tokenizer.decode, tokens, skip_special_tokens=False)

    async def defaults(self) -> ModelDefaults:
        return request_defaults(self._model, self._started_engine.config)

    # Administration

    def metrics_text(self) -> str:
        return self._metrics.text()

    async def workers(self) -> WorkersOfGroup:
        status = await self._started_engine.status()
        return WorkersOfGroup(
            workers=status.workers,
            coming=status.pending_workers,
            wanted=status.target_workers,
            problem=None if status.last_error is None else str(status.last_error),
        )

    async def resize(self, num_workers: int) -> WorkersOfGroup:
        await self._started_engine.resize(num_workers)
        logger.info(f"model {self._model!r} is to have {num_workers} workers")
        return await self.workers()

    async def control(self, method: str, arguments: Mapping[str, Any]) -> GroupState:
        engine = self._started_engine
        await getattr(engine, method)(**arguments)
        paused, self._sleeps = await engine.is_paused(), await engine.is_sleeping()
        return GroupState(weight_version=engine.weight_version, is_paused=paused, is_sleeping=self._sleeps)

    # Lifecycle, as Serve controls it

    async def check_health(self) -> None:
        """Raises what ended the group if no other group could take its place; Serve then replaces the replica."""
        engine = self._started_engine
        if engine.lost is not None:
            raise engine.lost
        if engine.last_status is not None:
            self._metrics.on_status(engine.last_status, engine.lost_groups)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
