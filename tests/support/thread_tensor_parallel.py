"""The shards of a model as threads of one process: tensor parallelism without Ray."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.engine.open_model import open_model
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.experts_config import ExpertParallel
from lopa_ray.model.native_implementation import NativeImplementation
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.transformer import Transformer
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport
from support.in_process_group import report_bytes

Result = TypeVar("Result")


class GatherBuffer:
    """The tensor of each thread, and the barrier at which the threads meet."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.tensors: list[Tensor] = [torch.empty(0)] * size


class ThreadTensorParallelGroup:
    """A shard's `TensorParallelGroup`, among threads."""

    def __init__(self, rank: int, buffer: GatherBuffer) -> None:
        self.rank = rank
        self.size = len(buffer.tensors)
        self.unwaited = 0
        """Calls since the last `wait`: until then the host must not read what depends on them."""
        self._buffer = buffer

    def all_gather(self, x: Tensor) -> Tensor:
        self.unwaited += 1
        self._buffer.tensors[self.rank] = x
        self._buffer.barrier.wait()
        gathered = torch.stack(self._buffer.tensors)
        self._buffer.barrier.wait()
        return gathered

    def all_reduce(self, x: Tensor) -> Tensor:
        first, *others = self.all_gather(x)
        for other in others:
            first = first + other
        return first

    def wait(self) -> None:
        self.unwaited = 0

    def barrier(self, device: torch.device) -> None:
        self.all_gather(torch.zeros(1, device=device))
        self.wait()


class HostReads(TorchFunctionMode):
    """Fails where the host reads a tensor, or copies one to the device, before it has waited for the calls of a shard:
    on an accelerator either would wait for them, whatever became of a peer. An operator's reference may read: there its
    kernel runs."""

    READS = (
        torch.Tensor.__bool__,
        torch.Tensor.cpu,
        torch.Tensor.item,
        torch.Tensor.nonzero,
        torch.Tensor.numpy,
        torch.Tensor.tolist,
    )

    def __init__(self, tp_group: ThreadTensorParallelGroup) -> None:
        super().__init__()
        self._tp_group = tp_group

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = (*args[1:], *kwargs.values())
        copies = func in (torch.tensor, torch.Tensor.to) and any(isinstance(x, torch.device) for x in given)
        in_reference = sys._getframe(1).f_globals["__name__"].startswith("lopa_ray.kernels.")
        if (func in self.READS or copies) and not in_reference:
            assert self._tp_group.unwaited == 0, f"{func} would block the host while a peer is lost"
        return func(*args, **kwargs)


class ShardThreads:
    """As many threads, each with its `TensorParallelGroup`."""

    def __init__(self, size: int) -> None:
        self._buffer = GatherBuffer(size)
        self.tp_groups = [ThreadTensorParallelGroup(rank, self._buffer) for rank in range(size)]
        self._threads = ThreadPoolExecutor(size)

    def run(self, function: Callable[[ThreadTensorParallelGroup], Result]) -> list[Result]:
        """What `function` returns on each shard. Raises what it raises."""

        def guarded(tp_group: ThreadTensorParallelGroup) -> Result:
            try:
                return function(tp_group)
            except BaseException:
                self._buffer.barrier.abort()
                raise

        futures = [self._threads.submit(guarded, tp_group) for tp_group in self.tp_groups]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._buffer.barrier.reset()
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]


def shard_model(model: Transformer, tp_group: TensorParallelGroup) -> Transformer:
    """One shard's part of a whole model."""
    whole = ((name, parameter.detach()) for name, parameter in model.named_parameters())
    like = model.embed.weight
    implementation = NativeImplementation(model.config, like.dtype, like.device, tp_group)
    return implementation.build_model(implementation.shard_weights(whole))


@dataclass(frozen=True)
class LaunchedShards:
    """A step that all shards have launched."""

    shards: ShardThreads
    steps: list[LaunchedStep]

    def report(self) -> StepReport:
        """That of each shard, if all are equal."""

        def report(tp_group: ThreadTensorParallelGroup) -> StepReport:
            with HostReads(tp_group):
                report = self.steps[tp_group.rank].report()
            assert tp_group.unwaited == 0
            return report

        first, *others = self.shards.run(report)
        for other in others:
            assert [(r, report_bytes(b)) for r, b in other.reports] == [
                (r, report_bytes(b)) for r, b in first.reports
            ]
        return first


class ShardedRunner:
    """The runners of all shards, as one that a `LocalEngine` takes. All of them must report the same."""

    def __init__(self, model: Transformer, size: int, **options: Any) -> None:
        self.shards = ShardThreads(size)
        self.runners = [
            BranchRunner(shard_model(model, tp_group), **options) for tp_group in self.shards.tp_groups
        ]
        self.vocabulary = self.runners[0].vocabulary
        self.model = self.runners[0].model

    def launch(self, plan: StepPlan) -> LaunchedShards:
        """See `BranchRunner.launch`."""

        def launch(tp_group: ThreadTensorParallelGroup) -> LaunchedStep:
            with HostReads(tp_group):
                return self.runners[tp_group.rank].launch(plan)

        return LaunchedShards(self.shards, self.shards.run(launch))

    def execute(self, plan: StepPlan) -> StepReport:
        return self.launch(plan).report()

    def logits(self, *arguments: Any, **options: Any) -> Tensor:
        first, *others = self.shards.run(
            lambda tp_group: self.runners[tp_group.rank].logits(*arguments, **options)
        )
        assert all(torch.equal(first, other) for other in others)
        return first


def engine_in_two_shards(config: Config, expert_parallel: ExpertParallel = "auto") -> LocalEngine:
    """As `LocalEngine.from_config`, but for the model being in two shards."""
    model = config.model
    _, spec, tokenizer = open_model(config)
    spec = replace(spec, model=spec.model.with_expert_parallel(expert_parallel))
    whole = build_runner(spec).model
    runner = ShardedRunner(whole, 2, max_num_seqs=model.max_num_seqs, max_model_len=model.max_model_len)
    return LocalEngine(config, runner, tokenizer)
