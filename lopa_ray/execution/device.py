"""Devices: what differs between CPU, NVIDIA GPUs and Ascend NPUs. Nothing else asks which one it is."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from lopa_ray.errors import SettingsError
from lopa_ray.execution import npu
from lopa_ray.execution.host_memory import keep_freed_memory

_DRIVER_VERSION = Path("/proc/driver/nvidia/version")

_log = logging.getLogger("lopa.device")


def _cuda_unavailable_reason() -> str | None:
    if torch.cuda.is_available():
        return None
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    return (
        f"torch {torch.__version__} ({built}) sees no GPU, and the driver is {_nvidia_driver()}; install a CUDA build "
        "of torch that fits the driver, and look at CUDA_VISIBLE_DEVICES"
    )


def _nvidia_driver() -> str:
    """The version of the loaded NVIDIA driver."""
    if not _DRIVER_VERSION.exists():
        return "not loaded"
    found = re.search(r"Module.*?\s(\d+\.[\d.]+)", _DRIVER_VERSION.read_text())
    return found[1] if found else "of an unknown version"


def _prepare_cuda() -> None:
    # It builds a plan for every shape, and the shapes of a step are hardly ever those of the step before.
    torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def _warn_untested(name: str) -> None:
    _log.warning("device %s: this project has not run on hardware of that kind; check what it gives", name)


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device."""

    name: str
    torch_name: str
    """Inside a worker: Ray shows each worker its own devices only, so the first one is its own."""
    collective_backend: str
    """torch.distributed backend that moves tensors between such devices."""
    ray_resource: str
    attention_backends: tuple[str, ...]
    """Attention backends that are for it, in the order in which `auto` tries them."""
    timed_attention: tuple[str, ...]
    """Those of them that `auto` times, to take the fastest; if there are none it takes the first that works."""
    compile_backend: str
    """torch.compile's backend for it."""
    compiles_kernels: bool
    """Whether the first steps on it compile kernels, whatever the settings."""
    unavailable_reason: Callable[[], str | None]
    """Why it cannot be used in this process, or None."""
    prepare: Callable[[], None]
    """Settings for it, in this process."""
    tested: bool
    """Whether this project has run on one, with a record of it in the repository."""

    def torch_device(self) -> torch.device:
        """The torch device. Raises SettingsError with the reason if it cannot be used.

        Warns, once per process, of a kind of device that this project has not run on yet.
        """
        reason = self.unavailable_reason()
        if reason is not None:
            raise SettingsError(f"device: got {self.name!r}, but {reason}, or set model.device: cpu")
        if not self.tested:
            _warn_untested(self.name)
        self.prepare()
        return torch.device(self.torch_name)


def host_buffer(words: int, device: torch.device) -> torch.Tensor:
    """Uninitialised int64 [words] on the host, from which a copy to the device need not be waited for.

    Memory of it that is given back is not handed out again before such a copy is done.
    """
    return torch.empty(words, dtype=torch.int64, pin_memory=device.type not in ("cpu", "meta"))


DEVICES = {
    "cpu": Device(
        "cpu",
        "cpu",
        "gloo",
        "CPU",
        ("sdpa", "flex", "reference"),
        timed_attention=(),
        compile_backend="inductor",
        compiles_kernels=False,
        unavailable_reason=lambda: None,
        prepare=keep_freed_memory,
        tested=True,
    ),
    # tests/gpu/LAST_RUN.md says whether, and a test holds this to it.
    "cuda": Device(
        "cuda",
        "cuda:0",
        "nccl",
        "GPU",
        ("triton", "flash_attn", "sdpa", "flex"),
        timed_attention=("triton", "flash_attn", "sdpa"),
        compile_backend="inductor",
        compiles_kernels=True,
        unavailable_reason=_cuda_unavailable_reason,
        prepare=_prepare_cuda,
        tested=False,
    ),
    "npu": Device(
        "npu",
        "npu:0",
        "hccl",
        "NPU",
        ("npu", "sdpa", "reference"),
        timed_attention=(),
        compile_backend=npu.COMPILE_BACKEND,
        compiles_kernels=False,
        unavailable_reason=npu.unavailable_reason,
        prepare=lambda: None,
        tested=False,
    ),
}
