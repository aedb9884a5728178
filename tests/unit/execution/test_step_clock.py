"""What a step reports of its time: from events on an accelerator, which a fake one stands in for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.step_clock import StepClock
from support.tiny_model import load_tiny_model

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

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1e3 * (end._reached - self._reached)


def clock_of_a_step() -> StepClock:
    clock = StepClock(CPU)
    clock.start()
    for _ in range(3):
        clock.mark()
    return clock


def test_commits_take_what_the_device_took(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeAccelerator(monkeypatch, 100.0, 102.0, 105.0, 105.5)
    commits, rest = clock_of_a_step().seconds()
    assert commits == pytest.approx(2.5)
    assert rest == 0.0  # the host was quicker than this device


def test_a_device_that_nobody_waited_for_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeAccelerator(monkeypatch, 100.0, 102.0, 105.0, 105.5, done=False)
    commits, _ = clock_of_a_step().seconds()
    assert 0 < commits < 2


def test_on_a_cpu_the_hosts_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 11.0, 13.0, 13.5, 20.0))
    clock = StepClock(CPU)
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock.start()
    for _ in range(3):
        clock.mark()
    assert clock.seconds() == (1.5, 8.5)


def test_a_step_reads_its_events_after_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeAccelerator(monkeypatch, 0.0, 2e-6, 3e-6, 7e-6)
    runner = BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=32)
    monkeypatch.setattr(runner, "score", _logged(device.log, runner.score))
    report = runner.execute(step_of(runner, [plan_of(runner.vocabulary.mask_token_id, 2, 8, start=0)]))
    assert device.log == [*["record"] * 4, "score", "query"]
    assert report.commit_s == pytest.approx(6e-6)
    assert report.forward_s > 0


def _logged(log: list[str], function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def logged(*arguments: object) -> torch.Tensor:
        log.append("score")
        return function(*arguments)

    return logged
