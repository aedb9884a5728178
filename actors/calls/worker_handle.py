"""A branch worker as its master sees it: its actors, the facts about its model, and what makes its runner. Masters
start without torch, so nothing here imports it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import ray

from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.protocol.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lopa_ray.execution.runner import BranchRunner
    from lopa_ray.model.tensor_parallel import TensorParallelGroup
    from lopa_ray.model.weights import Weights

RunnerFactory: TypeAlias = Callable[[ModelSpec, "Weights | None", "TensorParallelGroup"], "BranchRunner"]
"""Makes a worker's runner from given weights, or with None from weights that it reads itself."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Facts about a loaded model, which are the same for all workers of a group."""

    vocabulary: Vocabulary
    position_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class WorkerHandle:
    """An actor per shard of its model. Without tensor parallelism that is one."""

    shards: tuple[Any, ...]

    def call(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        return tuple(getattr(shard, method).remote(*arguments) for shard in self.shards)

    def ping(self) -> asyncio.Future[Any]:
        """Done when all shards have a place and have answered, which they do while they load their model too."""
        return asyncio.gather(*self.call("ping"))

    def kill(self) -> None:
        for shard in self.shards:
            ray.kill(shard)
