"""When a master sends the results of a step, with everything around it replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.group.master import Master
from lopa_ray.errors import WorkerLostError
from lopa_ray.scheduling.poison_requests import PoisonRequests


class FakePool(list[str]):
    """One worker that records what is asked of it, with the name of the step where it is not the usual one."""

    def __init__(self, called: Callable[[str], Any]) -> None:
        super().__init__(["worker"])
        self._called = called

    def scatter(self, plans: Any) -> str:
        """See `BranchPool.scatter`."""
        self._called(f"scatter{plans[0].name}")
        return str(plans[0].name)

    async def gather(self, batch: str) -> Any:
        """See `BranchPool.gather`."""
        return self._called(f"gather{batch}")

    async def drop(self, batch: str) -> None:
        """See `BranchPool.drop`."""
        self._called(f"drop{batch}")


def plan_named(name: str) -> list[Any]:
    return [SimpleNamespace(name=name, requests=())]


class Recorded(Master):
    """A master without a group: its parts record what is asked of them."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.steps_left = steps
        self.failing = ""
        self.changing = False
        self._scheduler: Any = SimpleNamespace(
            plan=lambda size: self._called("plan") or plan_named(""),
            plan_overlapped=lambda size: [],
            advance=self._record_advance,
            planned_ids=(),
            poison=PoisonRequests(),
            session_state=lambda _: None,
        )
        self._membership: Any = SimpleNamespace(pool=FakePool(self._called), change=self._record_change)
        self._published: Any = SimpleNamespace(
            put_nowait=lambda sent: self.calls.append(f"publish {sent.events[0].request_key}")
        )
        self._look()

    def _look(self) -> None:
        self._scheduler.busy, self._membership.change_due = self.steps_left > 0, self.changing

    def _called(self, name: str) -> Any:
        self.calls.append(name)
        if name == self.failing:
            raise WorkerLostError(name)
        return []

    async def _record_change(self, _: Any) -> None:
        self.changing = False
        self._called("change")
        self._look()

    def _record_advance(self, _: Any) -> list[Any]:
        self.steps_left -= 1
        self._look()
        name = self._called("advance") or self.steps_left
        return [SimpleNamespace(request_key=name)]


def steps(master: Recorded, number: int) -> list[str]:
    master.calls.clear()
    for _ in range(number):
        asyncio.run(master._step())
    return master.calls


def test_results_are_sent_while_the_next_step_is_computed() -> None:
    assert steps(Recorded(2), 2) == [
        *("plan", "scatter", "gather", "advance"),
        *("plan", "scatter", "publish 1", "gather", "advance", "publish 0"),
    ]


@pytest.mark.parametrize("failing", ["plan", "scatter", "gather"])
def test_results_are_sent_whatever_becomes_of_the_next_step(failing: str) -> None:
    master = Recorded(2)
    steps(master, 1)
    master.failing = failing
    with pytest.raises(WorkerLostError):
        steps(master, 1)
    assert master.calls.count("publish 1") == 1
    master.failing = ""
    assert steps(master, 1)[-1] == "publish 0" and "publish 1" not in master.calls


def test_results_do_not_wait_for_a_change_of_the_group() -> None:
    master = Recorded(2)
    master.changing = True  # it shows while the step is computed
    assert steps(master, 1)[-2:] == ["advance", "publish 1"]
    assert steps(master, 1) == ["change", "plan", "scatter", "gather", "advance", "publish 0"]
