"""Workers on GPUs of their own that die, hang or raise: the others survive in their processes, with the same tokens."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic")
pytest.importorskip("ray")

from actors.engine import RayEngine
from lopa_ray.errors import WorkerError
from support.faulty_runner import Poison, faulty_runner
from support.group_under_test import GroupUnderTest, ReferenceResults, comparable, group_with_faults
from support.processes import actor_pids
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

ON_GPU = {"device": "cuda", "dtype": "float32"}

TOLERANCE = 1e-4

RECOVERY_S = 5.0
"""Without a step, at most."""


@pytest.fixture(scope="module")
def reference() -> ReferenceResults:
    return ReferenceResults(tiny_config(model=ON_GPU))


@pytest.mark.parametrize("point", ["source", "receiver", "forward", "import_slots"])
def test_the_other_worker_survives_a_killed_one(
    local_ray: None,
    reference: ReferenceResults,
    tmp_path: Path,
    point: str,
    record_property: Callable[[str, object], None],
) -> None:
    """In a broadcast and in a forward, and again before the new worker has committed anything; twice in a row."""
    with group_with_faults(tmp_path, reference, ON_GPU, TOLERANCE, num_workers=2) as (group, faults):
        for round_number in (1, 2):
            group.wait_for_workers(2)
            before, earlier = set(actor_pids("BranchWorker")), set(faults.triggered())
            faults.inject(point)
            group.run_batch(6, lambda: faults.inject("forward") if point == "import_slots" else None)
            group.run_until(lambda: not faults.pending)
            group.wait_for_workers(2)
            lost = {pid: moment for pid, moment in faults.triggered().items() if pid not in earlier}
            survivors = before - set(lost)
            assert survivors and survivors <= set(actor_pids("BranchWorker"))
            pause_s = max(group.pause_s(moment) for moment in lost.values())
            record_property(f"pause after a worker was killed ({point}, {round_number}), ms", 1000 * pause_s)
            assert pause_s < RECOVERY_S


def test_a_worker_that_raises_in_a_step_ends_its_request_alone(
    local_ray: None, reference: ReferenceResults
) -> None:
    config = tiny_config(model=ON_GPU, group={"num_workers": 2})
    with RayEngine.from_config(config, runner_factory=faulty_runner) as engine:
        before = set(actor_pids("BranchWorker"))
        for poison in (Poison.ERROR, Poison.ERROR_BEFORE_BROADCAST):
            prompts = [PROMPTS[0], [int(poison), 5], PROMPTS[1]]
            sessions = [engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in prompts]
            results = dict(engine.run(sessions))
            assert isinstance(results.pop(1), WorkerError)
            assert [comparable(results[at])[0] for at in (0, 2)] == [
                reference[at, "two_phase"][0] for at in (0, 1)
            ]
        assert set(actor_pids("BranchWorker")) == before


def test_resize_while_decoding(local_ray: None, reference: ReferenceResults) -> None:
    with RayEngine.from_config(tiny_config(model=ON_GPU, group={"num_workers": 1})) as engine:
        group = GroupUnderTest(engine, reference, tolerance=TOLERANCE)
        for workers in (2, 1, 2):
            group.run_batch(6, lambda workers=workers: engine.resize(workers))
            group.wait_for_workers(workers)


def test_a_hung_worker_is_replaced(local_ray: None, reference: ReferenceResults, tmp_path: Path) -> None:
    short = {"num_workers": 2, "step_timeout_s": 4.0}
    with group_with_faults(tmp_path, reference, ON_GPU, TOLERANCE, **short) as (group, faults):
        for point in ("forward", "source"):
            group.run_batch(6, lambda point=point: faults.inject(point, sig=signal.SIGSTOP))
            group.run_until(lambda: not faults.pending)
        group.wait_for_workers(2)
