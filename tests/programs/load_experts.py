"""Load a checkpoint of many experts: `load_experts.py FOLDER` prints its bytes, and those that loading took."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from lopa_ray.model.checkpoint import load_model
from lopa_ray.model.weights import random_model


def resident(key: str) -> int:
    """Bytes, as the kernel counts them: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main(folder: str) -> None:
    torch.set_num_threads(1)
    warm = load_model(Path(folder).parent / "small", dtype=torch.float32, device="cpu")
    random_model(warm.config, 0, torch.float32, "cpu")
    before = resident("VmRSS")
    model = load_model(folder, dtype=torch.float32, device="cpu")
    held = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
    print(held, resident("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1])
