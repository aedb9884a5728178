"""Workers that die or hang while their group starts: it begins with the others, and no token differs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.engine import RayEngine
from lopa_ray.errors import WorkerError, WorkerLostError
from support.fault_injection import FaultInjection
from support.faulty_runner import LoadFaultFactory
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.processes import actor_pids, send_signal
from support.tiny_model import tiny_config
from support.waiting import wait_until

TWO = {"num_workers": 2}
TWO_OF_TWO_SHARDS = {**TWO, "tensor_parallel_size": 2}
ALONE = {"num_workers": 1}

STARTS_WITHIN_S = 100.0
"""Below it a worker that hangs until then would fail the start, and above it one that is replaced does not."""


@pytest.fixture
def signalled() -> Iterator[list[int]]:
    """Processes that a test has sent a signal to; one that is stopped does not end by itself."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        send_signal(pid, signal.SIGKILL)


def next_worker(passed_over: set[int]) -> int:
    """The process of a worker that is none of those."""
    wait_until(lambda: set(actor_pids("BranchWorker")) - passed_over, "a worker")
    return min(set(actor_pids("BranchWorker")) - passed_over)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sig", "group"),
    [
        (signal.SIGKILL, TWO),
        *(
            pytest.param(sig, size, marks=pytest.mark.nightly)
            for sig, size in (
                (signal.SIGSTOP, TWO),
                (signal.SIGSTOP, TWO_OF_TWO_SHARDS),
                (signal.SIGKILL, TWO_OF_TWO_SHARDS),
                (signal.SIGSTOP, ALONE),
            )
        ),
    ],
    ids=str,
)
def test_lost_while_it_loads(
    sig: signal.Signals,
    group: dict[str, int],
    tmp_path: Path,
    reference: ReferenceResults,
    signalled: list[int],
) -> None:
    """In the first start of the group, and in that of the group after it."""
    faults = FaultInjection(tmp_path)
    config = tiny_config(group={**group, "start_timeout_s": STARTS_WITHIN_S})
    faults.inject("load", sig=sig)
    with RayEngine.from_config(config, runner_factory=faults) as engine:
        assert not faults.pending
        signalled += faults.triggered()
        under_test = GroupUnderTest(engine, reference)
        under_test.run_batch(3)
        under_test.wait_for_workers(group["num_workers"])

        def lose_the_group() -> None:
            faults.inject("load", sig=sig)
            send_signal(actor_pids("Master")[0], signal.SIGKILL)

        under_test.run_batch(3, lose_the_group)
        assert not faults.pending
        signalled += faults.triggered()
        under_test.wait_for_workers(group["num_workers"])


@pytest.mark.slow
@pytest.mark.parametrize("sig", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_lost_as_soon_as_its_process_is_there(
    sig: signal.Signals, reference: ReferenceResults, signalled: list[int]
) -> None:
    """It has not imported much by then. A stopped one that is woken joins the others, or its place is taken."""
    before = set(actor_pids("BranchWorker"))

    def signal_the_first() -> None:
        signalled.append(next_worker(before))
        send_signal(signalled[0], sig)

    signaller = threading.Thread(target=signal_the_first)
    signaller.start()
    with RayEngine.from_config(tiny_config(group={**TWO, "start_timeout_s": STARTS_WITHIN_S})) as engine:
        signaller.join()
        under_test = GroupUnderTest(engine, reference)
        under_test.run_batch(3)
        send_signal(signalled[0], signal.SIGCONT)
        under_test.wait_for_workers(2)


@pytest.mark.nightly
def test_workers_that_all_die_as_they_load_are_an_error(tmp_path: Path) -> None:
    faults = FaultInjection(tmp_path)
    faults.inject("load", 100)
    with pytest.raises(WorkerLostError, match="a new worker died"):
        RayEngine.from_config(tiny_config(group=TWO), runner_factory=faults)
    assert len(faults.triggered()) <= 10


@pytest.mark.nightly
def test_an_error_of_loading_is_raised_at_once(tmp_path: Path) -> None:
    (fault := tmp_path / "fault").touch()
    with pytest.raises(WorkerError, match="a new worker failed: RuntimeError: injected fault while loading"):
        RayEngine.from_config(tiny_config(group=TWO), runner_factory=LoadFaultFactory(fault))
