"""What goes wrong in a group: each one a clear error, in time, with nothing left running."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
import ray
import torch

from actors.engine import RayEngine
from lopa_ray.config.config import Config
from lopa_ray.decoding.result import GenerationResult, TraceStep
from lopa_ray.engine.base import OnStep
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import (
    CapacityError,
    CheckpointError,
    ClusterError,
    ScoreError,
    WorkerError,
    WorkerLostError,
)
from lopa_ray.protocol.events import RequestFailure
from support.groups import POISON, PROMPTS, SETTINGS, FaultyFactory, config, overflowing
from support.marks import also_long
from support.trials import PATIENCE_S, actor_pids, end


def wait_until_gone() -> None:
    deadline = time.monotonic() + 20
    while actor_pids("BranchWorker") + actor_pids("Master"):
        assert time.monotonic() < deadline, "actors outlive their engine"
        time.sleep(0.1)


NO_MEMORY = r"CUDA out of memory\. Tried.* needs more memory than there is: lower num_branches"

FAULTS = {
    "in a forward": (FaultyFactory(), WorkerError, "RuntimeError: injected fault"),
    "while others wait for its K/V": (FaultyFactory(before_exchange=True), WorkerError, "injected fault"),
    "out of memory": (
        FaultyFactory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")),
        WorkerError,
        NO_MEMORY,
    ),
    "NaN in logits": (overflowing, ScoreError, r"scores in step 1 are no numbers \(NaN\)"),
}


@pytest.mark.parametrize("fault", [*list(FAULTS)[1:], *also_long("in a forward")])
def test_a_fault_ends_the_request_that_caused_it_and_no_other(fault: str) -> None:
    settings, local = SETTINGS["two_phase"], LocalEngine.from_config(config())
    factory, kind, message = FAULTS[fault]
    with RayEngine.from_config(config(), runner_factory=factory) as engine:
        prompts = [*PROMPTS[:2], [5, POISON], *PROMPTS[2:]]
        results = dict(engine.run([engine.create_session(prompt, settings) for prompt in prompts]))
        error = results.pop(2)
        assert isinstance(error, kind) and re.search(message, str(error))
        for index, result in results.items():
            assert isinstance(result, GenerationResult)
            assert result.token_ids == local.generate(prompts[index], settings).token_ids
        assert len(results) == len(PROMPTS)
        first, second = engine.checksums()
        assert first == second
    wait_until_gone()


def test_engines_share_ray_and_a_closed_one_says_so() -> None:
    one = config(group={"num_workers": 1})
    with RayEngine.from_config(one) as first, RayEngine.from_config(one) as second:
        expected = second.generate(PROMPTS[0], SETTINGS["d2f"]).token_ids
        first.close()
        with pytest.raises(ClusterError, match="closed"):
            first.generate(PROMPTS[0], SETTINGS["d2f"])
        assert second.generate(PROMPTS[0], SETTINGS["d2f"]).token_ids == expected
    wait_until_gone()


def test_without_any_worker_left_and_no_other_group_every_request_ends_with_an_error() -> None:
    with RayEngine.from_config(config(group={"resume_timeout_s": 0})) as engine:
        sessions = [engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS]
        results = dict(engine.run(sessions, on_step=kill_all_workers_once()))
        assert len(results) == len(PROMPTS)
        assert any(isinstance(result, WorkerLostError) for result in results.values())
        with pytest.raises(WorkerLostError, match="died"):
            engine.generate(PROMPTS[0], SETTINGS["two_phase"])
        with pytest.raises(WorkerLostError, match="died"):
            engine.resize(3)
    wait_until_gone()


def kill_all_workers_once() -> OnStep:
    done: list[bool] = []

    def on_step(index: int, step: TraceStep) -> None:
        if not done:
            done.append(True)
            for pid in actor_pids("BranchWorker"):
                end(pid, signal.SIGKILL)

    return on_step


@pytest.mark.long
def test_a_request_that_hangs_every_worker_ends_when_it_has_done_so_to_two_groups() -> None:
    slow = config(group={"step_timeout_s": 1.0})
    with RayEngine.from_config(slow, runner_factory=FaultyFactory(hang_s=60)) as engine:
        began = time.monotonic()
        with pytest.raises(WorkerLostError, match=r"did not answer a step within 1 s"):
            engine.generate([5, POISON], SETTINGS["two_phase"])
        assert time.monotonic() - began < PATIENCE_S
    wait_until_gone()


def test_killed_master_takes_its_workers_along_and_is_an_error_without_another_group() -> None:
    engine = RayEngine.from_config(config(group={"resume_timeout_s": 0}))
    events = engine.events([engine.create_session(PROMPTS[0], SETTINGS["two_phase"])])
    next(events)
    (master,) = actor_pids("Master")
    os.kill(master, signal.SIGKILL)
    *_, failure = events
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, WorkerLostError) and "master" in str(failure.error)
    engine.close()
    wait_until_gone()


def test_wrong_checkpoint_leaves_nothing_running(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        RayEngine.from_config(Config.parse({"model": {"path": str(tmp_path)}, "group": {"num_cpus": 0.5}}))
    wait_until_gone()


def test_group_that_cannot_be_placed_says_what_the_cluster_has() -> None:
    began = time.monotonic()
    with pytest.raises(CapacityError, match=r"99 workers of 1 CPU each do not fit: .* with 8 CPU"):
        RayEngine.from_config(config(group={"num_workers": 99, "num_cpus": 1.0}))
    assert time.monotonic() - began < 15
    wait_until_gone()


def test_ray_outlives_an_engine_that_did_not_start_it() -> None:
    assert ray.is_initialized()
