"""Weights as chunks in Ray's object store, from which all workers of a node build their models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import ray
import torch

from lopa_ray.model.weights import Weights

WeightChunk: TypeAlias = list[tuple[str, torch.dtype, tuple[int, ...], npt.NDArray[np.uint8]]]
"""Some parameters: name, type, shape and bytes."""

CHUNK_BYTES = 64 * 2**20
"""A chunk ends with the parameter that brings it to this size: few objects in the store, and little memory to pack."""


def to_chunks(weights: Weights) -> Iterator[WeightChunk]:
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
    """Weights in the object store of this node (`chunks`: references), where they stay, read-only."""
    for reference in chunks:
        content: WeightChunk = ray.get(reference)
        for name, dtype, shape, raw in content:
            with warnings.catch_warnings():
                # The array is meant to be read-only: all workers of the node map it.
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                yield name, torch.from_numpy(raw).view(dtype).view(shape)
