"""Workers that die or hang, really, at any point of a step: every token as if nothing had happened."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.transfer.kv_transfer import TRANSFERS
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.engine.local import LocalEngine
from support.fault_injection import FaultInjection
from support.group_under_test import (
    NUM_WORKERS,
    GroupUnderTest,
    ReferenceResults,
    group_with_faults,
    nightly,
    reference_of,
    wait_for_status,
)
from support.processes import actor_pids, send_signal
from support.tiny_model import PROMPTS, SETTINGS, TINY_EXPERTS, TINY_MODEL, tiny_config
from support.waiting import wait_until

pytestmark = pytest.mark.medium


@pytest.fixture(
    scope="module",
    params=[TINY_MODEL, *nightly(*TINY_EXPERTS.values())],
    ids=lambda folder: folder.name,
)
def reference(request: pytest.FixtureRequest) -> ReferenceResults:
    return reference_of(request.param)


@pytest.fixture(scope="module")
def group_and_faults(
    tmp_path_factory: pytest.TempPathFactory, reference: ReferenceResults
) -> Iterator[tuple[GroupUnderTest, FaultInjection]]:
    with group_with_faults(tmp_path_factory.mktemp("faults"), reference) as opened:
        yield opened


@pytest.mark.parametrize("point", ["step", *nightly("receiver", "source", "forward", "answer")])
def test_killed_in_a_step(group_and_faults: tuple[GroupUnderTest, FaultInjection], point: str) -> None:
    group, faults = group_and_faults
    group.run_until(lambda: group.engine.status().workers > 1)
    group.run_batch(6, lambda: faults.inject(point))
    group.run_until(lambda: not faults.pending)


def test_trajectories_are_as_if_nothing_had_happened(
    group_and_faults: tuple[GroupUnderTest, FaultInjection],
) -> None:
    """All fields, bit for bit."""
    group, faults = group_and_faults
    group.run_until(lambda: group.engine.status().workers > 1)
    asked = [settings.replace(trajectory="entropies") for settings in SETTINGS.values()]
    alone = LocalEngine.from_config(tiny_config(model={"path": group.reference.model.path}))
    steps = 0

    def on_step(index: int, step: TraceStep) -> None:
        nonlocal steps
        steps += 1
        if steps == 20:
            faults.inject("step")

    sessions = [group.engine.create_session(PROMPTS[1], settings) for settings in asked]
    results = dict(group.engine.run(sessions, on_step=on_step))
    for index, settings in enumerate(asked):
        result = results[index]
        assert isinstance(result, GenerationResult), result
        assert result.trajectory == alone.generate(PROMPTS[1], settings).trajectory is not None
    group.run_until(lambda: not faults.pending)


@pytest.mark.parametrize("point", [pytest.param("receiver", marks=pytest.mark.slow), *nightly("forward")])
def test_all_but_one_are_killed(group_and_faults: tuple[GroupUnderTest, FaultInjection], point: str) -> None:
    group, faults = group_and_faults
    group.wait_for_workers(NUM_WORKERS)
    group.run_batch(6, lambda: faults.inject(point, NUM_WORKERS - 1))
    group.run_until(lambda: not faults.pending)


@pytest.mark.parametrize("point", nightly("join", "load", "import_slots", "export_slots"))
def test_killed_while_another_joins(
    group_and_faults: tuple[GroupUnderTest, FaultInjection], point: str
) -> None:
    group, faults = group_and_faults
    group.wait_for_workers(NUM_WORKERS)
    faults.inject(point)
    group.run_batch(6, lambda: faults.inject("forward"))
    group.run_until(lambda: not faults.pending)


@pytest.mark.nightly
def test_killed_while_idle(group_and_faults: tuple[GroupUnderTest, FaultInjection]) -> None:
    group, _ = group_and_faults
    group.wait_for_workers(NUM_WORKERS)
    withdrawn = "a worker that was withdrawn to end"
    wait_until(lambda: len(actor_pids("BranchWorker")) == NUM_WORKERS, withdrawn)
    send_signal(actor_pids("BranchWorker")[0], signal.SIGKILL)
    wait_for_status(group.engine, lambda status: status.workers < NUM_WORKERS, "the loss to be noticed")
    group.wait_for_workers(NUM_WORKERS)
    assert group.engine.status().last_error is None


@pytest.mark.nightly
@pytest.mark.parametrize("transfer", sorted(TRANSFERS.keys() - {tiny_config().transfer}))
def test_killed_with_another_transfer(transfer: str, tmp_path: Path, reference: ReferenceResults) -> None:
    with group_with_faults(tmp_path, reference, transfer=transfer) as (group, faults):
        for point in ("source", "receiver"):
            group.run_batch(6, lambda point=point: faults.inject(point))
            group.run_until(lambda: not faults.pending)
        group.wait_for_workers(NUM_WORKERS)


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["source", "forward"])
def test_hung(tmp_path: Path, reference: ReferenceResults, point: str) -> None:
    with group_with_faults(tmp_path, reference, step_timeout_s=4.0) as (group, faults):
        group.run_batch(6, lambda: faults.inject(point, sig=signal.SIGSTOP))
        group.run_until(lambda: not faults.pending)
        group.wait_for_workers(NUM_WORKERS)
        assert all(3.0 < group.pause_s(moment) < 4.0 + 3.0 for moment in faults.triggered().values())
