"""What goes wrong in a group: each one a clear error, in time, with nothing left running."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import ray
from groups import POISON, PROMPTS, SETTINGS, FaultyFactory, config
from trials import actor_pids

from actors.engine import RayEngine
from lopa_ray.answer import TraceStep
from lopa_ray.config import Config
from lopa_ray.engine import OnStep
from lopa_ray.errors import CapacityError, CheckpointError, ClusterError, WorkerError, WorkerLostError
from lopa_ray.local import LocalEngine


def wait_until_gone() -> None:
    deadline = time.monotonic() + 20
    while actor_pids("BranchWorker") + actor_pids("Master"):
        assert time.monotonic() < deadline, "actors outlive their engine"
        time.sleep(0.1)


def test_fault_in_a_forward_fails_its_step_and_the_group_goes_on() -> None:
    expected = LocalEngine.from_config(config()).generate(PROMPTS[1], SETTINGS["two_phase"]).token_ids
    with RayEngine.from_config(config(), runner_factory=FaultyFactory()) as engine:
        with pytest.raises(WorkerError, match="injected fault"):
            engine.generate([5, POISON], SETTINGS["two_phase"])
        assert engine.generate(PROMPTS[1], SETTINGS["two_phase"]).token_ids == expected
    wait_until_gone()


def test_fault_while_the_others_wait_for_its_kv_fails_its_step_and_the_group_is_rebuilt() -> None:
    settings = SETTINGS["two_phase"]
    local = LocalEngine.from_config(config())
    with RayEngine.from_config(config(), runner_factory=FaultyFactory(before_exchange=True)) as engine:
        began = time.monotonic()
        with pytest.raises(WorkerError, match="injected fault"):
            engine.generate([5, POISON], settings)
        assert time.monotonic() - began < 10
        for prompt in PROMPTS:
            assert engine.generate(prompt, settings).token_ids == local.generate(prompt, settings).token_ids
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


def test_killed_worker_is_an_error_for_every_request() -> None:
    with RayEngine.from_config(config()) as engine:
        sessions = [engine.session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS]
        results = dict(engine.run(sessions, on_step=kill_a_worker_once()))
        assert len(results) == len(PROMPTS)
        assert any(isinstance(result, WorkerLostError) for result in results.values())
        with pytest.raises(WorkerLostError, match="died"):
            engine.generate(PROMPTS[0], SETTINGS["two_phase"])
    wait_until_gone()


def kill_a_worker_once() -> OnStep:
    done: list[bool] = []

    def on_step(index: int, step: TraceStep) -> None:
        if not done:
            done.append(True)
            os.kill(actor_pids("BranchWorker")[0], signal.SIGKILL)

    return on_step


def test_hung_worker_is_lost_after_the_deadline() -> None:
    slow = config(group={"step_timeout_s": 1.0})
    with RayEngine.from_config(slow, runner_factory=FaultyFactory(hang_s=60)) as engine:
        began = time.monotonic()
        with pytest.raises(WorkerLostError, match=r"did not answer a step within 1 s"):
            engine.generate([5, POISON], SETTINGS["two_phase"])
        assert time.monotonic() - began < 10
    wait_until_gone()


def test_killed_master_is_an_error_and_takes_its_workers_along() -> None:
    engine = RayEngine.from_config(config())
    events = engine.events([engine.session(PROMPTS[0], SETTINGS["two_phase"])])
    next(events)
    (master,) = actor_pids("Master")
    os.kill(master, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="master"):
        list(events)
    engine.close()
    wait_until_gone()


def test_wrong_checkpoint_leaves_nothing_running(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        RayEngine.from_config(Config.parse({"model": {"path": str(tmp_path)}, "group": {"num_cpus": 0.5}}))
    wait_until_gone()


def test_group_that_cannot_be_placed_says_what_the_cluster_has() -> None:
    began = time.monotonic()
    with pytest.raises(CapacityError, match=r"99 CPU, but Ray has 8"):
        RayEngine.from_config(config(group={"num_workers": 99, "num_cpus": 1.0}))
    assert time.monotonic() - began < 15
    wait_until_gone()


def test_ray_outlives_an_engine_that_did_not_start_it() -> None:
    assert ray.is_initialized()
