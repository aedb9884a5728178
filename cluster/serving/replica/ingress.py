"""Ingress: from HTTP to the group of a model; `cluster.serving.app` makes a deployment of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from cluster.choices.messages import OwnedId
from cluster.serving.protocol.backend import AnswerT, ArgumentTs, Call, RequestT, StreamingCall
from cluster.serving.protocol.messages import GroupHealth, ReplicaMetrics, RequestRejected
from cluster.serving.replica.metrics_reader import read_metrics
from lopa_ray.errors import ClusterError, DeadlineError, LopaError, OverloadedError, RequestCancelledError

logger = logging.getLogger("lopa.http")
DEADLINE_GRACE_S = 1.0  # a group ends its own requests; here others are ended, which never reached one
QUEUE_TIMEOUT_S = 60.0  # how long text and tokens may wait for a group that has all the requests it takes
ADMIN_TIMEOUT_S = 3600.0  # weights may change only when all requests in flight have ended
CANCEL_TIMEOUT_S = 10.0  # how long replicas of the ingress may take to say whether they have a request


class Ingress:
    """The `Backend` of the HTTP layer. Every method runs on the replica's event loop."""

    def __init__(self, **groups: Any) -> None:
        self._groups: Mapping[str, Any] = groups  # model id → handle of its deployment
        self.models = list(groups)
        self._cancel_events: dict[OwnedId, asyncio.Event] = {}  # they end running requests
        self._draining = False

    async def stream(
        self, model: str, call: StreamingCall[RequestT, AnswerT], request: RequestT
    ) -> AsyncGenerator[AnswerT, None]:
        """See `Backend.stream`. Raises ClusterError while this server shuts down, too."""
        if self._draining:
            raise ClusterError("the server is shutting down; send the request to another one")
        cancelled = self._cancel_events[request.owned_id] = asyncio.Event()
        stream = self._groups[model].options(stream=True).stream.remote(call.__name__, request)
        deadline = (
            None if request.deadline_s is None else time.monotonic() + request.deadline_s + DEADLINE_GRACE_S
        )
        finished = False
        cancellation = asyncio.ensure_future(cancelled.wait())
        next_output: asyncio.Future[Any] = asyncio.Future()
        try:
            while True:
                next_output = asyncio.ensure_future(anext(stream, None))
                timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
                done, _ = await asyncio.wait(
                    {next_output, cancellation}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if next_output not in done:
                    if cancellation in done:
                        raise RequestCancelledError(f"request {request.id} was cancelled")
                    raise DeadlineError(
                        f"still waiting for a slot after {request.deadline_s:g} s; try again later"
                    )
                output = next_output.result()
                if output is None:
                    finished = True
                    return
                if isinstance(output, RequestRejected):
                    raise output.error
                yield output
        except Exception as error:
            raise _unwrap(error) from None
        finally:
            cancellation.cancel()
            next_output.cancel()
            del self._cancel_events[request.owned_id]
            if not finished:
                # A call that never reached a group raises the reason here once more.
                with contextlib.suppress(RayServeException):
                    stream.cancel()

    async def cancel(self, owned_id: OwnedId) -> bool:
        """See `Backend.cancel`. Another replica of the ingress may have the request."""
        if await self.cancel_here(owned_id):
            return True
        replicas = serve.get_replica_context()
        others = serve.get_deployment_handle(replicas.deployment, replicas.app_name)
        asked = others.broadcast("cancel_here", owned_id)
        return True in await _answers(asked, CANCEL_TIMEOUT_S, "replicas of this server")

    async def cancel_here(self, owned_id: OwnedId) -> bool:
        event = self._cancel_events.get(owned_id)
        if event is not None:
            event.set()
        return event is not None

    async def ask(self, model: str, call: Call[*ArgumentTs, AnswerT], *arguments: *ArgumentTs) -> AnswerT:
        """See `Backend.ask`. The call waits in the model's queue, as requests do."""
        response = self._groups[model].call.remote(call.__name__, *arguments)
        try:
            answer = await asyncio.wait_for(response, QUEUE_TIMEOUT_S)
        except TimeoutError:
            response.cancel()
            raise OverloadedError(
                f"model {model!r} did not answer within {QUEUE_TIMEOUT_S:g} s; try again later"
            ) from None
        except Exception as error:
            raise _unwrap(error) from None
        if isinstance(answer, RequestRejected):
            raise answer.error
        return cast(AnswerT, answer)

    async def metrics(self) -> list[ReplicaMetrics]:
        deployments = {model: handle.deployment_name for model, handle in self._groups.items()}
        try:
            return await read_metrics(deployments)
        except RayError as error:
            raise _unwrap(error) from None

    async def status(self) -> list[GroupHealth]:
        """The groups as Serve's controller sees them. Raises ClusterError if a model has no running replica."""
        application = serve.get_replica_context().app_name
        deployments = (await asyncio.to_thread(serve.status)).applications[application].deployments
        statuses = []
        for model, handle in self._groups.items():
            deployment = deployments[handle.deployment_name]
            states = cast(Mapping[str, int], deployment.replica_states)  # the values of an enumeration
            running = states.get("RUNNING", 0)
            if not running:
                logger.warning(f"model {model!r} has no running replica: {deployment.message}")
                raise ClusterError(f"model {model!r} has no running replica ({deployment.status.value})")
            statuses.append(GroupHealth(model=model, status=deployment.status.value, replicas=running))
        return statuses

    async def ask_all(
        self, model: str, call: Call[*ArgumentTs, AnswerT], *arguments: *ArgumentTs
    ) -> list[AnswerT]:
        asked = self._groups[model].broadcast(call.__name__, *arguments)
        results = await _answers(asked, ADMIN_TIMEOUT_S, f"groups of model {model!r}")
        failed = {
            at: _unwrap(result) for at, result in enumerate(results, 1) if isinstance(result, Exception)
        }
        if len(failed) == len(results):
            raise failed[1]
        if failed:
            which = "; ".join(f"{at} of {len(results)} ({error})" for at, error in failed.items())
            logger.warning(f"groups of model {model!r} failed: {which}")
            raise ClusterError(f"these groups of model {model!r} failed: {which}; ask again")
        return results

    async def drain(self) -> None:
        """Refuse new requests, and return when all running requests of this replica have ended."""
        self._draining = True
        while self._cancel_events:
            await asyncio.sleep(0.05)

    async def check_health(self) -> None:
        """Alive as long as it answers."""


async def _answers(asked: Any, timeout_s: float, who: str) -> list[Any]:
    """The answer of each replica to a broadcast, or its error. Raises ClusterError if not all of them answer."""
    try:
        return list(await asked.results_async(timeout_s=timeout_s, return_exceptions=True))
    except TimeoutError:
        raise ClusterError(f"not all {who} answered in {timeout_s:g} s; ask again") from None
    except Exception as error:
        raise _unwrap(error) from None


def _unwrap(error: Exception) -> Exception:
    """The error of the group, without Ray's wrapping; errors of Ray and Serve become LopaErrors."""
    if isinstance(error, BackPressureError):
        return OverloadedError("the queue is full; try again later")
    while isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        error = error.cause
    if isinstance(error, LopaError):
        return error
    if isinstance(error, RayError | RayServeException):
        logger.warning(f"a call of a group failed: {type(error).__name__}: {error}")
        return ClusterError("the group was lost and is being replaced; try again later")
    return error
