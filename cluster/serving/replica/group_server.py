"""GroupServer: one decode group behind Ray Serve. A plain class; `cluster.app` makes a deployment of it.

One replica owns a master and its branch workers. They are its children, in its placement group,
so they end with it however it ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from actors.async_engine import AsyncRayEngine
from cluster.serving.messages import Accepted, Finished, GroupWorkers, Job, Message
from cluster.serving.replica.choice import Choice
from cluster.serving.replica.metrics import GroupMetrics
from lopa_ray.config.config import Config
from lopa_ray.config.decoder_settings import merge_decoder_settings, parse_decoder_settings
from lopa_ray.config.generation_settings import GUIDED, GenerationSettings
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import ClusterError, DeadlineError, LopaError, PromptTooLongError, WorkerLostError
from lopa_ray.text.tokenizer import Tokenizer

LARGEST_SEED = 2**63

STALL_FACTOR = 1.5
"""A step that takes this many times its own deadline means that the master itself is stuck."""

logger = logging.getLogger("lopa.group")


class GroupServer:
    """Decodes jobs on its own group."""

    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        """`config`: the sections of a configuration, as plain values. `start` does the rest."""
        self._engine: AsyncRayEngine | None = None
        self._model = model
        self._config = Config.parse(dict(config))
        self._metrics = GroupMetrics(model)

    async def start(self) -> None:
        """Start master and workers. Raises CheckpointError, SettingsError, WorkerLostError."""
        config = self._config
        tokenizer = Tokenizer.from_pretrained(config.model.folder)
        self._engine = engine = await AsyncRayEngine.start(config, on_step=self._metrics.on_step)
        self._sessions = SessionFactory(config, engine.info.vocabulary, tokenizer)
        logger.info(f"model {self._model!r} is ready on {config.group.num_workers} workers")

    @property
    def _running(self) -> AsyncRayEngine:
        if self._engine is None:
            raise ClusterError(f"the group of model {self._model!r} is not started; call start first")
        return self._engine

    async def run(self, job: Job) -> AsyncGenerator[Message, None]:
        """See `Backend.run`, for this model. The deadline counts from the call."""
        arrived = time.monotonic()
        outcome = "error"
        choices: list[Choice] = []
        try:
            # A new pattern takes a while; nothing else has to wait for it.
            slow = any(name in job.settings for name in GUIDED)
            make = partial(self._choices, job, arrived)
            choices = await asyncio.to_thread(make) if slow else make()
            yield Accepted(
                tuple(len(choice.session.prompt) for choice in choices[:: job.n]),
                max(choice.session.settings.max_new_tokens for choice in choices),
            )
            async for message in self._run(job, choices):
                yield message
                if isinstance(message, Finished):
                    self._metrics.on_finished(message)
            outcome = "finished"
        except DeadlineError:
            outcome = "deadline"
            raise
        except LopaError as error:
            outcome = "error" if choices else "refused"
            if choices:
                logger.warning(f"job {job.id}: {type(error).__name__}: {error}")
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self._metrics.on_job(outcome, time.monotonic() - arrived)

    async def _run(self, job: Job, choices: list[Choice]) -> AsyncGenerator[Message, None]:
        """All choices at once; their messages as they come, until each has finished or one fails."""
        queue: asyncio.Queue[Message | Exception] = asyncio.Queue()
        tasks = [asyncio.create_task(self._decode(choice, queue)) for choice in choices]
        unfinished = {choice.index: choice for choice in choices}
        try:
            while unfinished:
                try:
                    async with asyncio.timeout_at(job.deadline_s and choices[0].arrived + job.deadline_s):
                        message = await queue.get()
                except TimeoutError:
                    if not job.partial:
                        raise DeadlineError(
                            f"not finished after {job.deadline_s:g} s; raise the deadline, lower max_tokens, or "
                            "set partial to get what was decided by then"
                        ) from None
                    for choice in unfinished.values():
                        for late in choice.cut_short():
                            yield late
                    return
                if isinstance(message, Exception):
                    raise message
                yield message
                if isinstance(message, Finished):
                    del unfinished[message.choice]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _decode(self, choice: Choice, queue: asyncio.Queue[Message | Exception]) -> None:
        try:
            for message in choice.begin():
                queue.put_nowait(message)
            async with aclosing(self._running.decode(choice.session)) as steps:
                async for plan, outcome, timing in steps:
                    for message in choice.advance(plan, outcome, timing):
                        queue.put_nowait(message)
                    if choice.done:
                        return
        except Exception as error:
            queue.put_nowait(error)

    # Requests

    def _choices(self, job: Job, arrived: float) -> list[Choice]:
        """Raises PromptError and SettingsError. Each of `n` choices draws with a seed of its own."""
        choices: list[Choice] = []
        position_bytes = self._running.info.position_bytes
        # Without a seed each request draws anew.
        any_seed = secrets.randbelow(LARGEST_SEED)
        for prompt in job.prompts:
            ids = self._sessions.encode(prompt, raw=job.raw)
            settings = self._settings(job, len(ids))
            first = settings.seed if "seed" in job.settings else any_seed
            for number in range(job.n):
                if settings.temperature > 0:
                    settings = settings.replace(seed=(first + number) % LARGEST_SEED)
                session = self._sessions.create_session(ids, settings)
                choices.append(
                    Choice(job, len(choices), session, self._sessions.tokenizer, position_bytes, arrived)
                )
        return choices

    def _settings(self, job: Job, prompt_len: int) -> GenerationSettings:
        """The group's settings with those of the job on top."""
        defaults = self._config.decode.model_dump(exclude_unset=True)
        wanted = dict(job.settings)
        if "num_branches" in wanted:
            wanted.setdefault("branch_budget", "fixed")
        room = self._config.model.max_model_len - prompt_len
        if "max_new_tokens" not in wanted:
            if room < 1:
                raise PromptTooLongError(
                    f"{prompt_len} prompt tokens leave no room for an answer: prompt and answer together may "
                    f"have {self._config.model.max_model_len} tokens; shorten the prompt"
                )
            wanted["max_new_tokens"] = min(self._config.decode.max_new_tokens, room)
            wanted.setdefault("min_tokens", min(self._config.decode.min_tokens, room))
        return parse_decoder_settings(
            merge_decoder_settings({"decoder": self._config.decode.decoder, **defaults}, wanted)
        )

    # What operators ask

    async def workers(self) -> GroupWorkers:
        """See `Backend.workers`, for this group."""
        status = await self._running.status()
        problem = None if status.problem is None else str(status.problem)
        return GroupWorkers(status.workers, status.coming, status.wanted, problem)

    async def resize(self, num_workers: int) -> GroupWorkers:
        """See `Backend.resize`, for this group."""
        await self._running.resize(num_workers)
        logger.info(f"model {self._model!r} is to have {num_workers} workers")
        return await self.workers()

    # What Serve asks

    async def check_health(self) -> None:
        """Raises WorkerLostError if the group is dead or stuck; Serve then replaces the replica.

        While another group is started in place of a lost one the replica is fine: it has a deadline.
        """
        if self._running.resuming:
            return
        status = await asyncio.wait_for(self._running.status(), self._config.group.step_timeout_s)
        self._metrics.on_status(status)
        if status.broken is not None:
            raise WorkerLostError(f"the group of model {self._model!r} is broken: {status.broken}")
        limit = STALL_FACTOR * self._config.group.step_timeout_s
        if status.stalled_s > limit:
            raise WorkerLostError(
                f"the group of model {self._model!r} has been in one step for {status.stalled_s:.0f} s; "
                f"its limit is {limit:g} s"
            )

    def close(self) -> None:
        """End the group."""
        if self._engine is not None:
            self._engine.close()
