"""WorkerModel: a worker's model on its way from a checkpoint to a runner, by way of chunks of weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import ray
import torch

from actors.worker_handle import RunnerFactory
from lopa_ray.execution.model_files import download_weights
from lopa_ray.execution.model_loader import build_runner, load_weights, resolve_auto, warm_up
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights

WeightChunk: TypeAlias = list[tuple[str, torch.dtype, tuple[int, ...], npt.NDArray[np.uint8]]]
"""Some parameters: name, type, shape and bytes."""

CHUNK_BYTES = 64 * 2**20
"""A chunk ends with the parameter that brings it to this size: few objects in the store, and little memory to pack."""


def to_chunks(weights: Weights) -> Iterator[WeightChunk]:
    """Weights on the CPU as chunks for the object store."""
    chunk: WeightChunk = []
    for name, tensor in weights:
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        chunk.append((name, tensor.dtype, tuple(tensor.shape), raw))
        if sum(entry[-1].nbytes for entry in chunk) >= CHUNK_BYTES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def from_chunks(chunks: Sequence[Any]) -> Weights:
    """Weights that lie in the object store of this node, where they stay: read-only, and shared by all who map them."""
    for reference in chunks:
        content: WeightChunk = ray.get(reference)
        for name, dtype, shape, raw in content:
            with warnings.catch_warnings():
                # The array is meant to be read-only: all workers of the node map it.
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                yield name, torch.from_numpy(raw).view(dtype).view(shape)


class WorkerModel:
    """Reads weights, resolves settings of auto and builds the runner, with `group.threads` threads."""

    def __init__(self, spec: ModelSpec, runner_factory: RunnerFactory | None) -> None:
        """None: `build_runner`."""
        self.spec = spec
        """The model to load. Before `build`, settings of auto may be replaced by measured ones."""
        self._runner_factory = runner_factory or build_runner
        torch.set_num_threads(spec.config.group.threads)

    def download(self) -> None:
        """Have the checkpoint's files on this node. Raises CheckpointError."""
        download_weights(self.spec.config.model)

    def read_weights(self) -> Iterator[WeightChunk]:
        """Read the weights for all workers on this node. Raises CheckpointError."""
        yield from to_chunks(load_weights(self.spec, "cpu"))

    def resolve_auto(self) -> ModelSpec:
        """The model with what auto stands for here. Raises SettingsError."""
        return resolve_auto(self.spec)

    def build(self, chunks: Sequence[Any] | None, tp_group: TensorParallelGroup) -> BranchRunner:
        """The runner, from the chunks (object references) that `read_weights` gave if there are any.

        Raises CheckpointError or SettingsError.
        """
        weights = None if chunks is None else from_chunks(chunks)
        return self._runner_factory(self.spec, weights, tp_group)

    def warm_up(self, runner: BranchRunner) -> None:
        """Compile a shard's layers, while the other shards do."""
        warm_up(runner)
