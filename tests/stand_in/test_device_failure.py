"""A worker whose device computes no more ends its process; after any other error it goes on."""

from __future__ import annotations

import logging
import os

import pytest

from actors.workers.branch_worker import BranchWorker
from lopa_ray.errors import ProtocolError, TransferError
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan
from support.faulty_runner import Poison, faulty_runner
from support.tiny_model import tiny_config


class ProcessEnded(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> BranchWorker:
    def end(code: int) -> None:
        assert code == 1
        raise ProcessEnded

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    started = BranchWorker(ModelSpec.read(tiny_config()), faulty_runner)
    started.prepare()
    started.load_model(None)
    return started


def step(first_token: int, request: int = 1) -> StepPlan:
    plan = Plan(1, 0, (first_token, 5, 127, 127), (Branch(((4, 4),), range(2, 4)),), ())
    return StepPlan(0, 1, (ScheduledRequest(request, 0, plan, (0,)),))


def lose_device(worker: BranchWorker) -> None:
    with pytest.raises(ProcessEnded):
        worker.execute(step(Poison.ILLEGAL_ACCESS))


def test_it_ends_at_the_first_error(worker: BranchWorker, caplog: pytest.LogCaptureFixture) -> None:
    lose_device(worker)
    assert "its device computes no more" in caplog.text and "illegal memory access" in caplog.text


@pytest.mark.parametrize("poison", [Poison.ERROR, Poison.OUT_OF_MEMORY])
def test_it_goes_on_after_errors_that_leave_the_device_as_it_was(
    worker: BranchWorker, poison: Poison
) -> None:
    with pytest.raises(RuntimeError):
        worker.execute(step(poison))
    assert worker.execute(step(3, request=2)).reports


def test_an_error_of_a_collective_shows_it_too(worker: BranchWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's errors arrive as TransferError, whatever was the reason."""

    def no_connection(_: object) -> None:
        raise TransferError("epoch 1 was not formed: CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(worker._transfer, "join", no_connection)
    with pytest.raises(TransferError):
        worker.join_epoch(_Epoch, _Epoch, None, {}, [])
    lose_device(worker)
    with pytest.raises(ProcessEnded):
        worker.join_epoch(_Epoch, _Epoch, None, {}, [])


def test_a_plan_of_another_epoch_says_nothing_about_the_device(worker: BranchWorker) -> None:
    lose_device(worker)
    with pytest.raises(ProtocolError):
        worker.execute(StepPlan(7, 1, ()))


class _Epoch:
    epoch = 0
