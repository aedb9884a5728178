"""Weights in Ray's object store: packed by the worker that has read them, mapped by all on its node."""

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
"""A parcel is as small as it can be from here on: the store's objects are few, and packing takes little memory."""


def pack(weights: Weights) -> Iterator[WeightChunk]:
    """Weights on the CPU as parcels for the object store."""
    parcel: WeightChunk = []
    for name, tensor in weights:
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        parcel.append((name, tensor.dtype, tuple(tensor.shape), raw))
        if sum(entry[-1].nbytes for entry in parcel) >= CHUNK_BYTES:
            yield parcel
            parcel = []
    if parcel:
        yield parcel


def unpack(parcels: Sequence[Any]) -> Weights:
    """Weights that lie in the object store of this node, where they stay: read-only, and shared by all who map them."""
    for parcel in parcels:
        content: WeightChunk = ray.get(parcel)
        for name, dtype, shape, raw in content:
            with warnings.catch_warnings():
                # That it cannot be written to is what is wanted.
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                yield name, torch.from_numpy(raw).view(dtype).view(shape)
