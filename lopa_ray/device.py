"""Devices: what differs between CPU, NVIDIA GPUs and Ascend NPUs. Nothing else asks which one it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lopa_ray.errors import SettingsError


def _cuda_ready() -> str | None:
    return (
        None if torch.cuda.is_available() else "torch sees no GPU; install a CUDA build of torch and a driver"
    )


def _npu_ready() -> str | None:
    try:
        importlib.import_module("torch_npu")
    except ImportError as error:
        return f"torch-npu cannot be imported ({error}); install lopa-ray[npu]"
    return None


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device."""

    name: str
    torch_name: str
    """Inside a worker: Ray shows each worker its own devices only, so the first one is its own."""
    collective: str
    """torch.distributed backend that moves tensors between such devices."""
    ray_resource: str
    attention: tuple[str, ...]
    """Attention kernels that are for it, in the order in which `auto` tries them."""
    problem: Callable[[], str | None]
    """Why it cannot be used in this process, or None."""

    def require(self) -> torch.device:
        """The torch device. Raises SettingsError with the reason if it cannot be used."""
        problem = self.problem()
        if problem is not None:
            raise SettingsError(f"device: got {self.name!r}, but {problem}, or set model.device: cpu")
        return torch.device(self.torch_name)


DEVICES = {
    "cpu": Device("cpu", "cpu", "gloo", "CPU", ("sdpa", "flex"), lambda: None),
    "cuda": Device("cuda", "cuda:0", "nccl", "GPU", ("flash_attn", "sdpa", "flex"), _cuda_ready),
    # Written against the published torch-npu; it has not run on hardware.
    "npu": Device("npu", "npu:0", "hccl", "NPU", ("sdpa",), _npu_ready),
}
