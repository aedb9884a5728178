"""What tests of decode groups share: the tiny model, prompts, settings, and runners that fail on demand."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from actors.branch_worker import default_runner
from lopa_ray.config.config import Config
from lopa_ray.config.decoder_settings import (
    BlockDiffusionSettings,
    D2FSettings,
    FastDllmSettings,
    LopaSettings,
    VanillaSettings,
)
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.execution.runner import BranchRunner, BroadcastPayload
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan, StepReport
from support.paths import MODELS

MODEL = MODELS / "dream-tiny-4l"

PROMPTS = [[1, 2, 3], [4, 5, 6, 7], list(range(20, 60)), [9] * 11, [77]]

SETTINGS: dict[str, GenerationSettings] = {
    "two_phase": LopaSettings(max_new_tokens=90, num_branches=5, stop_at_eos=False),
    "single_phase": LopaSettings(
        max_new_tokens=90, num_branches=5, window_attention="block_causal", stop_at_eos=False
    ),
    "two_phase_causal": LopaSettings(
        max_new_tokens=70,
        num_branches=3,
        block_size=16,
        window_attention="block_causal",
        commit_protocol="two_phase",
    ),
    "sampled": LopaSettings(max_new_tokens=64, num_branches=4, temperature=0.8, top_p=0.95, seed=3),
    "d2f": D2FSettings(max_new_tokens=64, block_size=16, stop_at_eos=False),
    "auto_budget": LopaSettings(max_new_tokens=48, num_branches="auto", max_branches=8, block_size=16),
    "prefix_cache": FastDllmSettings(
        max_new_tokens=40, block_size=16, cache="prefix", num_branches=4, stop_at_eos=False
    ),
    "random_order": VanillaSettings(max_new_tokens=24, remasking="random", temperature=0.7, num_branches=3),
    "block_diffusion": BlockDiffusionSettings(max_new_tokens=40, num_branches=3, stop_at_eos=False),
    "sub_blocks": BlockDiffusionSettings(
        max_new_tokens=40, block_size=16, sub_block_size=4, sub_block_cache=True, num_branches=3
    ),
    "dual_cache": FastDllmSettings(max_new_tokens=48, block_size=16, stop_at_eos=False),
}

POISON = 99
"""A prompt that ends in this token makes a `FaultyRunner` misbehave."""


def config(**sections: dict[str, Any]) -> Config:
    """A group on the tiny model that asks for half a CPU per worker."""
    model = {"path": str(MODEL), "max_model_len": 256, **sections.get("model", {})}
    group = {"num_cpus": 0.5, **sections.get("group", {})}
    return Config.parse({"model": model, "group": group})


class FaultyRunner:
    """Works as told until a step works on a poisoned prompt; then it raises, or hangs.

    With `before_exchange` it is the worker that staged the winner's K/V which raises, while its
    peers already wait for them.
    """

    def __init__(self, runner: BranchRunner, error: Exception, hang_s: float, before_exchange: bool) -> None:
        self._runner = runner
        self._error = error
        self._hang_s = hang_s
        self._before_exchange = before_exchange
        self._poisoned: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: StepPlan, broadcast: BroadcastPayload | None = None) -> StepReport:
        self._poisoned |= {
            work.request_id for work in plan.requests if work.plan.start == 0 and POISON in work.plan.canvas
        }
        poisoned = [work for work in plan.requests if work.request_id in self._poisoned]
        if self._before_exchange:
            hit = any(work.source == 0 and self._staged_here(work) for work in poisoned)
        else:
            hit = any(work.branches for work in poisoned)
        if hit:
            time.sleep(self._hang_s)
            raise self._error
        return self._runner.execute(plan, broadcast)

    def _staged_here(self, work: ScheduledRequest) -> bool:
        return not bool(self._runner.payload_to_commit(work).isnan().any())


class FaultyFactory:
    """Makes faulty runners; picklable."""

    def __init__(
        self,
        error: Exception = RuntimeError("injected fault"),  # noqa: B008 - never changed
        hang_s: float = 0.0,
        before_exchange: bool = False,
    ) -> None:
        self._error = error
        self._hang_s = hang_s
        self._before_exchange = before_exchange

    def __call__(self, config: Config, weights: Weights | None, parallel: TensorParallelGroup) -> Any:
        runner = default_runner(config, weights, parallel)
        return FaultyRunner(runner, self._error, self._hang_s, self._before_exchange)


def overflowing(config: Config, weights: Weights | None, parallel: TensorParallelGroup) -> BranchRunner:
    """A runner whose model has no number for the poison, so all that attends to it comes out as NaN; as a factory."""
    runner = default_runner(config, weights, parallel)

    def spoil(module: torch.nn.Module, inputs: tuple[Tensor], rows: Tensor) -> Tensor:
        return rows.masked_fill((inputs[0] == POISON)[:, None], torch.nan)

    runner.model.embed.register_forward_hook(spoil)
    return runner
