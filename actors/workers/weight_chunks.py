"""Weights as chunks in Ray's object store, from which all workers of a node build their models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import ray
import torch

from lopa_ray.model.checkpoint.weight_source import WeightSource
from lopa_ray.model.weights import Weights, host_copies

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


def put_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Put tensors, [...] in any dtype, into Ray's object store; returns name → reference to the chunk that has it.
    Raises as `host_copies`."""
    chunks = ((ray.put(chunk), chunk) for chunk in to_chunks(host_copies(tensors)))
    return {name: reference for reference, chunk in chunks for name, *_ in chunk}


def fetched(source: WeightSource) -> WeightSource:
    """`source` with tensors in the place of references (see `put_tensors`), in the memory of this node's store."""
    references = source.tensors
    chunks = ((reference, from_chunks([reference])) for reference in dict.fromkeys(references.values()))
    tensors = {
        name: tensor for reference, chunk in chunks for name, tensor in chunk if references[name] == reference
    }
    return replace(source, tensors=tensors)
