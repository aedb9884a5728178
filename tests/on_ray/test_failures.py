"""What goes wrong in a group: each one a clear error, in time, with nothing left running."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from actors.engine import RayEngine
from lopa_ray.decoding.result import TraceStep
from lopa_ray.engine.base import OnStep
from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError, WorkerLostError
from support.group_under_test import refuse_other_groups
from support.processes import actor_pids, send_signal
from support.tiny_model import PROMPTS, SETTINGS, tiny_config
from support.waiting import wait_until

pytestmark = pytest.mark.medium


def wait_until_no_actors() -> None:
    wait_until(lambda: not actor_pids("BranchWorker") + actor_pids("Master"), 20, "the actors to end")


@pytest.mark.slow
def test_without_any_worker_left_and_no_other_group_every_request_ends_with_an_error() -> None:
    with RayEngine.from_config(tiny_config()) as engine:
        refuse_other_groups(engine)
        sessions = [engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS]
        results = dict(engine.run(sessions, on_step=kill_all_workers_once()))
        assert len(results) == len(PROMPTS)
        assert any(isinstance(result, WorkerLostError) for result in results.values())
        with pytest.raises(WorkerLostError, match="died"):
            engine.generate(PROMPTS[0], SETTINGS["two_phase"])
        with pytest.raises(WorkerLostError, match="died"):
            engine.resize(3)
    wait_until_no_actors()


def kill_all_workers_once() -> OnStep:
    done: list[bool] = []

    def on_step(index: int, step: TraceStep) -> None:
        if not done:
            done.append(True)
            for pid in actor_pids("BranchWorker"):
                send_signal(pid, signal.SIGKILL)

    return on_step


def test_wrong_checkpoint_leaves_nothing_running(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        RayEngine.from_config(Config.parse({"model": {"path": str(tmp_path)}, "group": {"num_cpus": 0.5}}))
    wait_until_no_actors()
