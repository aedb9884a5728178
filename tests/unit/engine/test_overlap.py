"""The one-process engine with two steps in flight: what it does while the device computes, and the same results."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport
from support.tiny_model import PROMPTS, SETTINGS, TINY_MODEL, tiny_config

pytestmark = pytest.mark.stand_in

FAST = LopaSettings(max_new_tokens=16, block_size=8, num_branches=3, confidence_threshold=0.5)


def engine_of(overlap: bool | str) -> LocalEngine:
    torch.set_num_threads(1)
    return LocalEngine.from_config(tiny_config(group={"overlap_schedule": overlap}))


class Device:
    """Works as a runner does, and logs what the host asks for."""

    def __init__(self, engine: LocalEngine) -> None:
        self.log: list[tuple[str, list[int]]] = []
        self.failing = False
        self._runner = engine.runner
        engine.runner = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan) -> Step:
        requests = [scheduled.request_id for scheduled in plan.requests]
        if self.failing and any(what == "launch" for what, _ in self.log):
            raise RuntimeError("injected")
        self.log.append(("launch", requests))
        return Step(self.log, requests, self._runner.launch(plan).report)


class Step:
    """In flight until the host waits for its report."""

    def __init__(
        self, log: list[tuple[str, list[int]]], requests: list[int], report: Callable[[], StepReport]
    ) -> None:
        self._log, self._requests, self._report = log, requests, report

    def report(self) -> StepReport:
        self._log.append(("wait", self._requests))
        return self._report()


def test_the_next_half_is_launched_before_the_host_waits() -> None:
    engine = engine_of(True)
    device = Device(engine)
    engine.generate([[1], [2], [3], [4]], FAST)
    one, other = [1, 2], [3, 4]
    assert device.log[:6] == [
        *(("launch", one), ("launch", other), ("wait", one)),
        *(("launch", one), ("wait", other), ("launch", other)),
    ]
    waits = [requests for what, requests in device.log if what == "wait"]
    assert waits == [requests for what, requests in device.log if what == "launch"]  # in order, each once


@pytest.mark.parametrize(("overlap", "prompts"), [(True, 1), (False, 3), ("auto", 3)])
def test_on_a_cpu_and_for_a_single_request_a_step_is_over_before_the_next(
    overlap: bool | str, prompts: int
) -> None:
    engine = engine_of(overlap)
    device = Device(engine)
    engine.generate([[number] for number in range(prompts)], FAST)
    whats = [what for what, _ in device.log]
    assert whats == ["launch", "wait"] * (len(whats) // 2)


@pytest.mark.medium
def test_results_are_the_same_of_any_mixture() -> None:
    draw = random.Random(5)
    requests = [(draw.choice(PROMPTS), draw.choice([*SETTINGS])) for _ in range(12)]

    def results(overlap: bool) -> list[GenerationResult]:
        with engine_of(overlap) as engine:
            sessions = [engine.create_session(prompt, SETTINGS[name]) for prompt, name in requests]
            by_index = dict(engine.run(sessions, trace=True))
        return [by_index[index] for index in range(len(requests))]  # type: ignore[misc]

    for one, other in zip(results(True), results(False), strict=True):
        assert (one.token_ids, one.steps, one.forwards) == (other.token_ids, other.steps, other.forwards)
        assert one.trace == other.trace


def test_an_error_of_a_launch_gives_up_what_is_in_flight_and_the_engine_goes_on() -> None:
    engine = engine_of(True)
    expected = [result.token_ids for result in engine.generate(PROMPTS[:3], FAST)]
    device = Device(engine)
    device.failing = True
    with pytest.raises(RuntimeError, match="injected"):
        engine.generate(PROMPTS[:3], FAST)
    device.failing = False
    assert [result.token_ids for result in engine.generate(PROMPTS[:3], FAST)] == expected


@pytest.mark.parametrize(
    ("device", "overlap", "expected"),
    [
        *(("cpu", "auto", False), ("cuda", "auto", "auto"), ("npu", "auto", "auto")),
        *(("cpu", True, True), ("cuda", False, False)),
    ],
)
def test_auto_is_off_on_a_cpu(device: str, overlap: bool | str, expected: bool | str) -> None:
    values = {"model": {"path": str(TINY_MODEL), "device": device}, "group": {"overlap_schedule": overlap}}
    assert Config.parse(values).overlap == expected
