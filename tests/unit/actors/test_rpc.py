"""What a worker raised, as its master tells it."""

from __future__ import annotations

import pytest
import torch
from ray.exceptions import ObjectLostError

from actors.rpc import IN_A_STEP, cause_of
from lopa_ray.errors import CheckpointError, TransferError, WorkerMemoryError

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
