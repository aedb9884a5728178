"""Workers that die or hang, really, at any point of a step: every token as if nothing had happened."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fault_injection import FaultInjection
from support.marks import also_long
from support.trials import WORKERS, Oracle, Trial, actor_pids, end, fated


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, oracle: Oracle) -> Iterator[tuple[Trial, FaultInjection]]:
    with fated(tmp_path_factory.mktemp("fates"), oracle) as made:
        yield made


@pytest.mark.parametrize("point", ["step", "source", "receiver", *also_long("forward", "answer")])
def test_killed_in_a_step(group: tuple[Trial, FaultInjection], point: str) -> None:
    trial, fates = group
    trial.until(lambda: trial.engine.status().workers > 1)
    trial.batch(6, lambda: fates.lay(point))
    trial.until(lambda: not fates.waiting)


@pytest.mark.parametrize("point", ["receiver", *also_long("forward")])
def test_all_but_one_are_killed(group: tuple[Trial, FaultInjection], point: str) -> None:
    trial, fates = group
    trial.until_there_are(WORKERS)
    trial.batch(6, lambda: fates.lay(point, WORKERS - 1))
    trial.until(lambda: not fates.waiting)


@pytest.mark.parametrize("point", ["join", *also_long("load", "adopt", "export")])
def test_killed_while_another_joins(group: tuple[Trial, FaultInjection], point: str) -> None:
    trial, fates = group
    trial.until_there_are(WORKERS)
    fates.lay(point)
    trial.batch(6, lambda: fates.lay("forward"))
    trial.until(lambda: not fates.waiting)


def test_killed_while_idle(group: tuple[Trial, FaultInjection]) -> None:
    trial, _ = group
    trial.until_there_are(WORKERS)
    while len(members := actor_pids("BranchWorker")) > WORKERS:  # somebody whom an earlier test withdrew
        time.sleep(0.1)
    end(members[0], signal.SIGKILL)
    while trial.engine.status().workers == WORKERS:
        time.sleep(0.1)
    trial.until_there_are(WORKERS)
    assert trial.engine.status().last_error is None


@pytest.mark.long
def test_killed_where_kv_travel_by_object_store(tmp_path: Path, oracle: Oracle) -> None:
    with fated(tmp_path, oracle, transfer="object_store") as (trial, fates):
        for point in ("source", "receiver"):
            trial.batch(6, lambda point=point: fates.lay(point))
            trial.until(lambda: not fates.waiting)
        trial.until_there_are(WORKERS)


def test_hung(tmp_path: Path, oracle: Oracle) -> None:
    with fated(tmp_path, oracle, step_timeout_s=4.0) as (trial, fates):
        for point in ("forward", "source"):
            trial.batch(6, lambda point=point: fates.lay(point, kind=signal.SIGSTOP))
            trial.until(lambda: not fates.waiting)
        trial.until_there_are(WORKERS)
        assert all(3.0 < trial.held_up(moment) < 4.0 + 3.0 for moment in fates.taken().values())
