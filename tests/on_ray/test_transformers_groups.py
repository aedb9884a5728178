"""Groups whose model the package transformers runs: the same tokens as in one process, also when a worker is lost."""

from __future__ import annotations

import os
import signal

import pytest

from actors.engine import RayEngine
from lopa_ray.decoding.decoders.renoising import RenoisingSettings
from lopa_ray.decoding.result import GenerationResult, TraceStep
from lopa_ray.engine.local import LocalEngine
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.processes import actor_pids
from support.tiny_model import CANVAS_MODEL, PROMPTS, tiny_config
from support.waiting import wait_until

BY_TRANSFORMERS = {"implementation": "transformers"}

pytestmark = pytest.mark.long


def test_a_group_decodes_what_one_process_does() -> None:
    """Weights are converted by one worker, and used by the others as they lie in the object store."""
    config = tiny_config(model=BY_TRANSFORMERS, group={"num_workers": 2})
    with RayEngine.from_config(config) as engine:
        group = GroupUnderTest(engine, ReferenceResults(tiny_config(model=BY_TRANSFORMERS)))
        process = actor_pids("BranchWorker")[0]
        group.run_batch(3, during=lambda: os.kill(process, signal.SIGKILL))
        group.wait_for_workers(2)


@pytest.mark.parametrize("losses", [[2], [0, 1, 1, 2]])
def test_self_conditioning_survives_lost_workers(losses: list[int]) -> None:
    """Requests are in the middle of their canvases when so many workers are killed, one time after the other."""
    settings = RenoisingSettings(
        max_new_tokens=40, max_denoising_steps=12, entropy_bound=1.0, ignore_eos=True, seed=5
    )
    config = tiny_config(model={"path": str(CANVAS_MODEL)}, group={"num_workers": 2})
    with LocalEngine.from_config(config) as alone:
        expected = [(r.token_ids, r.steps) for r in alone.generate(PROMPTS, settings)]
    with RayEngine.from_config(config) as engine:

        def decode(victims: int) -> None:
            killed: list[int] = []

            def on_step(index: int, step: TraceStep) -> None:
                if step.step == 6 and not killed:
                    killed.extend(actor_pids("BranchWorker")[:victims])
                    for process in killed:
                        os.kill(process, signal.SIGKILL)

            sessions = [engine.create_session(prompt, settings) for prompt in PROMPTS]
            results = dict(engine.run(sessions, on_step=on_step))
            assert len(killed) == victims
            for index, wanted in enumerate(expected):
                result = results[index]
                assert isinstance(result, GenerationResult), result
                assert (result.token_ids, result.steps) == wanted

        for victims in losses:
            wait_until(lambda: engine.status().workers == 2, 120.0)
            decode(victims)
