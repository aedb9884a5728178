"""Steps of a runner whose device is a fake CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.execution.attention import AttentionBackend, PackedAttention
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import Fp8Scales, NativeConfig, Quantization
from lopa_ray.model.linear import prepare
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.protocol.plan import Plan, StepPlan
from support.device_log import DeviceLog
from support.empty_models import empty_model
from support.fake_cuda import CUDA, HOPPER, fake_cuda
from support.paths import MODELS
from support.tiny_model import TINY_MODELS

PREFIX, CAPACITY, SLOTS, STAGED = 512, 768, 8, 8
"""Cached positions before the first step, positions and number of slots, and positions that a step stages."""

VOCAB = 1000

FP8_SCALES = (Fp8Scales(kind="channel"), Fp8Scales(kind="block", block=(128, 128)))
"""Of a checkpoint in fp8: a scale per row, and per block."""

PACKED = PackedAttention()

Change = Callable[[Plan], Plan]


class FakeShards:
    """The shards of a model, as one of them has them, without the others: sums are x, and a gather repeats it."""

    def __init__(self, rank: int = 1, size: int = 2) -> None:
        self.rank, self.size = rank, size
        self.waits = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x[None].expand(self.size, *x.shape).contiguous()

    def wait(self) -> None:
        self.waits += 1


def config_of(family: str, quantization: Quantization = "none") -> NativeConfig:
    """The configuration of a tiny model of a family."""
    tiny = load_config(MODELS / TINY_MODELS[family])
    assert isinstance(tiny, NativeConfig)
    ids = {"vocab_size": VOCAB, "mask_token_id": VOCAB - 1, "eos_token_id": VOCAB - 2}
    return replace(tiny, family=family, **ids).with_quantization(quantization)


def launches_of(family: str, once: int, dense: int, experts: int, shared: int) -> int:
    """The kernels of a step of a family's tiny model: `once`, and those of each layer by its kind."""
    config = config_of(family)
    sparse = [layer for layer in range(config.num_layers) if not config.is_dense(layer)]
    has_shared = config.experts is not None and config.experts.shared > 0
    return once + dense * config.num_layers + (experts - dense + shared * has_shared) * len(sparse)


def fp8_config_of(family: str, scales: Fp8Scales) -> NativeConfig:
    """The same in fp8, with sizes for which torch has products of it in blocks."""
    config = config_of(family)
    experts = config.experts and replace(config.experts, width=256)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "experts": experts}
    return replace(config, quantization="fp8", fp8=scales, **sizes)


@dataclass(frozen=True, slots=True)
class StepSetup:
    """A model on a fake CUDA device, and how its steps run."""

    config: NativeConfig
    dtype: torch.dtype = torch.bfloat16
    tp_group: TensorParallelGroup = SINGLE_SHARD
    attention: AttentionBackend = PACKED
    major: int = HOPPER

    def runner(self) -> BranchRunner:
        """A runner of it, to be called in `fake_cuda`. Trials of kernels, which wait, have been made."""
        model = empty_model(self.config, self.dtype, CUDA, self.tp_group)
        with DeviceLog():
            prepare(model)
        return runner_of(model, self.attention)

    def log(
        self, requests: int = 3, branches: int = 4, rows: int = 32, change: Change = lambda plan: plan
    ) -> DeviceLog:
        """The log of a step that commits what the step before it staged; see `log_step`."""
        with fake_cuda(self.major):
            return log_step(self.runner(), requests, branches, rows, change)


def runner_of(model: MaskPredictor, attention: AttentionBackend = PACKED) -> BranchRunner:
    """A runner with slots for the steps of this module."""
    return BranchRunner(model, max_num_seqs=SLOTS, max_model_len=CAPACITY, attention=attention)


def log_step(
    runner: BranchRunner, requests: int, branches: int, rows: int, change: Change = lambda plan: plan
) -> DeviceLog:
    """The log of the second of two steps, in which each request commits what it staged, stages, and scores `rows`.

    `change` makes other plans of those of both steps. To be called in `fake_cuda`.
    """
    first, second = (
        [change(plan)] * requests for plan in two_plans(runner.vocabulary.mask_token_id, branches, rows)
    )
    execute(runner, step_of(runner, first))
    return execute(runner, step_of(runner, second))


def two_plans(mask: int, branches: int, rows: int) -> tuple[Plan, Plan]:
    """A request's plans of two steps. The second commits what the first has staged."""
    first = plan_of(mask, branches, rows, start=PREFIX, step=1, staged=STAGED)
    second = plan_of(mask, branches, rows, start=PREFIX + STAGED, step=2, committed=STAGED, staged=STAGED)
    return first, second


def execute(runner: BranchRunner, plan: StepPlan, broadcast: Callable[..., None] | None = None) -> DeviceLog:
    """The log of one step, which reports every branch that it has."""
    with DeviceLog() as log:
        report = runner.execute(plan, broadcast)
    assert len(report.reports) == sum(len(scheduled.branch_indices) for scheduled in plan.requests)
    return log


def in_segments(plan: Plan) -> Plan:
    """The same plan with block-causal attention over its rows, in four segments."""
    rows = len(plan.canvas)
    ends = [plan.start + rows * part // 4 for part in range(1, 5)]
    segments = tuple((end, end) for end in ends)
    return replace(plan, branches=tuple(replace(branch, segments=segments) for branch in plan.branches))
