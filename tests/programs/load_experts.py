"""Load a checkpoint of many experts, or a shard of it: `load_experts.py FOLDER QUANTIZATION RANK SIZE` prints the bytes
of its weights, and those that loading took at most."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import Quantization
from lopa_ray.model.native_implementation import NativeImplementation
from lopa_ray.model.tensor_parallel import SingleShard
from lopa_ray.model.transformer import Transformer


def resident(key: str) -> int:
    """Bytes, as the kernel counts them: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def load(folder: Path, quantization: Quantization, rank: int, size: int) -> Transformer:
    """The shard, which is not connected to others."""
    config = load_config(folder).with_quantization(quantization).with_expert_parallel(True)
    implementation = NativeImplementation(config, torch.float32, "cpu", SingleShard(rank, size))
    return implementation.build_model(implementation.read_weights(folder))


def main(folder: str, quantization: Quantization, rank: str, size: str) -> None:
    torch.set_num_threads(1)
    load(
        Path(folder).parent / "small", quantization, int(rank), int(size)
    )  # what the first one takes besides
    before = resident("VmRSS")
    model = load(Path(folder), quantization, int(rank), int(size))
    held = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
    print(held, resident("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
