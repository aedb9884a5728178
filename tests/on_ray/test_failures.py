"""What goes wrong in a group: each one a clear error, in time, with nothing left running."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.engine import RayEngine
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError, WorkerLostError
from support.group_under_test import refuse_other_groups
from support.processes import kill_actors, wait_until_no_actors
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

pytestmark = pytest.mark.medium


@pytest.mark.slow
def test_without_any_worker_left_and_no_other_group_every_request_ends_with_an_error() -> None:
    with RayEngine.from_config(tiny_config()) as engine:
        refuse_other_groups(engine)
        sessions = [engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS]
        killed: list[int] = []

        def kill_all_workers_once(index: int, step: TraceStep) -> None:
            if not killed:
                killed.append(index)
                kill_actors("BranchWorker")

        results = dict(engine.run(sessions, on_step=kill_all_workers_once))
        assert len(results) == len(PROMPTS)
        assert any(isinstance(result, WorkerLostError) for result in results.values())
        with pytest.raises(WorkerLostError, match="died"):
            engine.generate(PROMPTS[0], SETTINGS["two_phase"])
        with pytest.raises(WorkerLostError, match="died"):
            engine.resize(3)
    wait_until_no_actors()


def test_wrong_checkpoint_leaves_nothing_running(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        RayEngine.from_config(Config.parse({"model": {"path": str(tmp_path)}, "group": {"num_cpus": 0.5}}))
    wait_until_no_actors()
