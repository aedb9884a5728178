"""Weights that the workers of a node share: the same tensors behind the object store, in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from actors.workers import weight_chunks
from actors.workers.weight_chunks import from_chunks, to_chunks
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import read_weights
from lopa_ray.model.weights import Weights
from support.fp8_checkpoints import LAYOUTS, save_fp8

pytestmark = pytest.mark.medium


@pytest.mark.parametrize(
    ("quantization", "in_format"),
    [
        ("none", torch.bfloat16),
        ("w8a8", torch.int8),
        ("stored", torch.float8_e4m3fn),
        ("fp8", torch.float8_e4m3fn),
    ],
)
def test_chunks_give_back_the_weights(
    quantization: Any,
    in_format: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, _ = save_fp8("llada2-tiny-3l", LAYOUTS["odd_blocks"], tmp_path)

    config = load_config(stored)
    if quantization != "stored":
        config = config.unfolded() if quantization == "none" else config.with_quantization(quantization)

    def weights() -> Weights:
        return read_weights(stored, config, dtype=torch.bfloat16)

    monkeypatch.setattr(weight_chunks, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(weight_chunks.ray, "get", lambda chunk: chunk)
    chunks = list(to_chunks(weights()))
    assert len(chunks) > 3
    shared, wanted = dict(from_chunks(chunks)), dict(weights())
    assert shared.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert shared[name].dtype == tensor.dtype and shared[name].shape == tensor.shape
        assert torch.equal(shared[name].float(), tensor.float())
    dtypes = {tensor.dtype for name, tensor in shared.items() if name.endswith("gate_up.weight")}
    assert in_format in dtypes
