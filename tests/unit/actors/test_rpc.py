"""What a worker raised, as its master tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    ObjectLostError,
    OutOfMemoryError,
    RuntimeEnvSetupError,
)

from actors.calls.actor_errors import (
    IN_A_STEP,
    MEMORY_ADVICE,
    ConnectionLostError,
    cause_of,
    unwrapped_errors,
)
from actors.calls.rpc import death_of_worker
from lopa_ray.errors import CheckpointError, ClusterError, TransferError, WorkerLostError, WorkerMemoryError

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")


@pytest.mark.parametrize(
    ("what", "advice"),
    [(IN_A_STEP, "lower num_branches or block_size"), ("load the model", "group.tensor_parallel_size")],
)
def test_too_little_memory_says_what_needs_less_of_it(what: str, advice: str) -> None:
    error = cause_of("worker 3", what, NO_MEMORY)
    assert isinstance(error, WorkerMemoryError) and error.__cause__ is NO_MEMORY
    assert str(error).startswith("worker 3 failed: OutOfMemoryError: CUDA out of memory") and advice in str(
        error
    )


def test_errors_of_this_project_stay_what_they_are() -> None:
    error = CheckpointError("damaged")
    assert cause_of("worker 0", IN_A_STEP, error) is error
    assert isinstance(cause_of("worker 0", IN_A_STEP, ObjectLostError("0" * 56, "", "")), TransferError)
    assert "memory" not in str(cause_of("worker 0", IN_A_STEP, ValueError("x")))


async def described(death: BaseException, *answers: BaseException | None) -> str:
    """What is said of the death of a worker whose shards, when they are called, end with these errors or answer."""

    def call(_: str) -> tuple[Awaitable[Any], ...]:
        futures = []
        for answer in answers:
            futures.append(asyncio.get_running_loop().create_future())
            if answer is None:
                futures[-1].set_result(None)
            else:
                futures[-1].set_exception(answer)
        return tuple(futures)

    return await death_of_worker(SimpleNamespace(call=call), death)


def test_a_worker_that_the_memory_monitor_killed_says_so_and_what_to_do() -> None:
    broken, killed = ConnectionLostError("the connection broke"), OutOfMemoryError("95 % used\nby many")
    said = f"{MEMORY_ADVICE} (95 % used)"
    assert asyncio.run(described(killed)) == said
    assert asyncio.run(described(broken, None, killed)) == said
    assert asyncio.run(described(broken, ActorDiedError())) == str(ActorDiedError())
    assert asyncio.run(described(broken, None)) == str(broken)


def test_so_does_a_master() -> None:
    with (
        pytest.raises(WorkerLostError, match="the group's master died: Ray's memory monitor"),
        unwrapped_errors(),
    ):
        raise OutOfMemoryError("95 % used")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeEnvSetupError("Traceback ...\n  File ...\nOSError: no package"), "OSError: no package"),
        (ActorUnschedulableError("startup failed.\nSee raylet.err"), ".*startup failed. See raylet.err"),
    ],
)
def test_what_cannot_be_started_is_a_cluster_error_with_the_reason(error: Exception, reason: str) -> None:
    with (
        pytest.raises(ClusterError, match=f"^Ray cannot start the group's master: {reason}$"),
        unwrapped_errors(),
    ):
        raise error
    assert isinstance(cause_of("worker 0", "load the model", error), ClusterError)
