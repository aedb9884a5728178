"""What a step reports of its time: from events on an accelerator, which a fake one stands in for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.execution.launched_step import BOUNDARIES, StepTimes
from lopa_ray.execution.runner import BranchRunner
from support.tiny_model import load_tiny_model

pytestmark = pytest.mark.stand_in

CPU = torch.device("cpu")


class FakeAccelerator:
    """A device that reaches its boundaries at these seconds, the last one only if it is `done`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *reached: float, done: bool = True) -> None:
        self.done = done
        self.log: list[str] = []
        self._reached = list(reached)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU)
        monkeypatch.setattr(torch, "Event", self._event)

    def _event(self, device: torch.device, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self, self._reached.pop(0))


class FakeEvent:
    """An event of that device."""

    def __init__(self, device: FakeAccelerator, reached: float) -> None:
        self._device, self._reached = device, reached

    def record(self) -> None:
        self._device.log.append("record")

    def query(self) -> bool:
        self._device.log.append("query")
        return self._device.done

    def synchronize(self) -> None:
        self._device.log.append("synchronize")

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1e3 * (end._reached - self._reached)


def times_of_a_step() -> StepTimes:
    times = StepTimes(CPU)
    for _ in range(BOUNDARIES - 1):
        times.mark()
    return times


def test_a_step_takes_what_the_device_took(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeAccelerator(monkeypatch, 100.0, 102.0, 105.0, 105.5, 112.0)
    assert times_of_a_step().seconds() == pytest.approx((2.5, 9.5))


def test_a_device_that_nobody_waited_for_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeAccelerator(monkeypatch, 100.0, 102.0, 105.0, 105.5, 112.0, done=False)
    commits, _ = times_of_a_step().seconds()
    assert 0 < commits < 2
    assert "synchronize" not in device.log


def test_on_a_cpu_the_hosts_clock_is_read_while_it_works_on_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # From 20 to 50 it launches another step.
    moments = iter((10.0, 11.0, 13.0, 13.5, 20.0, 50.0, 51.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    times = StepTimes(CPU)
    for _ in range(BOUNDARIES - 1):
        times.mark()
    times.wait()
    assert times.seconds() == (1.5, 9.5)


def test_a_step_waits_for_its_device_once_and_reads_its_events_then(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeAccelerator(monkeypatch, 0.0, 2e-6, 3e-6, 7e-6, 9e-6)
    runner = BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=32)
    monkeypatch.setattr(runner, "score", _logged(device.log, runner.score))
    launched = runner.launch(step_of(runner, [plan_of(runner.vocabulary.mask_token_id, 2, 8, start=0)]))
    assert device.log == [*["record"] * 4, "score", "record"]
    device.log.clear()
    report = launched.report()
    assert device.log == ["synchronize", "query"]
    assert report.commit_s == pytest.approx(6e-6)
    assert report.forward_s == pytest.approx(3e-6)


def _logged(log: list[str], function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def logged(*arguments: object) -> torch.Tensor:
        log.append("score")
        return function(*arguments)

    return logged
