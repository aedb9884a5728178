"""The shards of a model as threads of one process: tensor parallelism without Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from lopa_ray.config.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.weights import build_model
from lopa_ray.protocol.plan import StepPlan, StepReport
from lopa_ray.text.tokenizer import Tokenizer
from support.in_process_group import bits

T = TypeVar("T")


class Meeting:
    """Where threads put down what they have for each other."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.laid: list[Tensor] = [torch.empty(0)] * size


class ThreadShard:
    """A `TensorParallelGroup` among threads."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.size = len(meeting.laid)
        self.calls = 0
        self._meeting = meeting

    def all_gather(self, x: Tensor) -> Tensor:
        self.calls += 1
        self._meeting.laid[self.rank] = x
        self._meeting.barrier.wait()
        gathered = torch.stack(self._meeting.laid)
        self._meeting.barrier.wait()
        return gathered

    def all_reduce(self, x: Tensor) -> Tensor:
        first, *others = self.all_gather(x)
        for other in others:
            first = first + other
        return first


class Shards:
    """As many threads, each with its `TensorParallelGroup`."""

    def __init__(self, size: int) -> None:
        self._meeting = Meeting(size)
        self.each = [ThreadShard(rank, self._meeting) for rank in range(size)]
        self._threads = ThreadPoolExecutor(size)

    def run(self, work: Callable[[ThreadShard], T]) -> list[T]:
        """What `work` gives on each shard. Raises what it raises."""

        def guarded(shard: ThreadShard) -> T:
            try:
                return work(shard)
            except BaseException:
                self._meeting.barrier.abort()
                raise

        futures = [self._threads.submit(guarded, shard) for shard in self.each]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._meeting.barrier.reset()
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]


def shard_of(whole: Transformer, parallel: TensorParallelGroup) -> Transformer:
    """A shard of a model that is there as a whole."""
    weights = ((name, parameter.detach()) for name, parameter in whole.named_parameters())
    like = whole.embed.weight
    return build_model(whole.config, weights, dtype=like.dtype, device=like.device, parallel=parallel)


class ShardedRunner:
    """The runners of all shards, as one that a `LocalEngine` takes. All of them must report the same."""

    def __init__(self, whole: Transformer, size: int, **options: Any) -> None:
        self.shards = Shards(size)
        self.runners = [BranchRunner(shard_of(whole, each), **options) for each in self.shards.each]
        self.vocabulary = self.runners[0].vocabulary

    def execute(self, plan: StepPlan) -> StepReport:
        first, *others = self.shards.run(lambda shard: self.runners[shard.rank].execute(plan))
        for other in others:
            assert [(r, bits(b)) for r, b in other.reports] == [(r, bits(b)) for r, b in first.reports]
        return first

    def logits(self, *arguments: Any, **options: Any) -> Tensor:
        first, *others = self.shards.run(lambda shard: self.runners[shard.rank].logits(*arguments, **options))
        assert all(torch.equal(first, other) for other in others)
        return first


def engine_in_two_shards(config: Config) -> LocalEngine:
    """As `LocalEngine.from_config`, but for the model being in two shards."""
    model = config.model
    whole = build_runner(config, None).model
    runner = ShardedRunner(whole, 2, max_num_seqs=model.max_num_seqs, max_model_len=model.max_model_len)
    return LocalEngine(config, runner, Tokenizer.from_pretrained(model.folder))
