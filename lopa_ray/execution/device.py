"""Devices: all differences between CPU, NVIDIA GPUs and Ascend NPUs. Other modules read them from `Device`.

Torch is imported where a device is used: engines and masters on Ray read a device's properties without it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lopa_ray.errors import SettingsError
from lopa_ray.execution import npu

if TYPE_CHECKING:
    import torch

_CPU_INFO = Path("/proc/cpuinfo")
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")

MALLOPT = {-1: 2**30, -3: 2**25}
"""Parameters of glibc's mallopt. M_TRIM_THRESHOLD: bytes of freed memory that the process keeps; M_MMAP_THRESHOLD:
larger blocks are unmapped when freed, at glibc's documented maximum."""

_log = logging.getLogger("lopa.device")


def _cuda_unavailable_reason() -> str | None:
    import torch

    if torch.cuda.is_available():
        return None
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    return (
        f"torch {torch.__version__} ({built}) finds no GPU, and the driver is {_nvidia_driver()}; install a CUDA build "
        "of torch that fits the driver, and check CUDA_VISIBLE_DEVICES"
    )


def _nvidia_driver() -> str:
    if not _DRIVER_VERSION.exists():
        return "not loaded"
    version = re.search(r"Module.*?\s(\d+\.[\d.]+)", _DRIVER_VERSION.read_text())
    return version[1] if version else "of an unknown version"


def _prepare_cuda() -> None:
    import torch

    # cuDNN's attention builds a plan for every new shape, and the shapes change in almost every step.
    torch.backends.cuda.enable_cudnn_sdp(False)


def _keep_freed_memory() -> None:
    """Keep the memory of activations, which glibc by default returns to the system after every step, so that it has to
    map and clear all pages again. Without glibc nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, value in MALLOPT.items():
            mallopt(parameter, value)


def cpu_model() -> str:
    """The name of the processor; the architecture where the system does not tell it."""
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


@cache
def _warn_untested(name: str) -> None:
    _log.warning("device %s: this project has not run on hardware of that kind; check its results", name)


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    torch_name: str
    """Ray shows a worker its own devices only, so its device is the first."""
    auto_dtype: str
    collective_backend: str
    """The backend of torch.distributed."""
    ray_resource: str
    attention_backends: tuple[str, ...]
    """Backends in the order in which `auto` tries them."""
    timed_attention: tuple[str, ...] = ()
    """Attention backends of which `auto` selects the fastest. It selects no other: the others compute branch by
    branch, which takes many launches per layer. If there are none, it selects the first of all that works."""
    compiles_kernels: bool = False
    captures_graphs: bool = False
    multiplies_fp8: bool = False
    """Whether there are such devices that multiply fp8. On others the weights of an fp8 checkpoint are unfolded when
    they are read, unless `model.quantization` is fp8."""
    unavailable_reason: Callable[[], str | None] = lambda: None
    """Why the device cannot be used in this process, or None if it can."""
    prepare: Callable[[], None] = lambda: None
    """Sets process-wide options for the device."""
    tested: bool = False
    """Whether the repository has a record of a run of this project on such a device."""

    def count(self) -> int:
        """How many of them this process sees; 1 for the CPU. An accelerator is not initialized by this."""
        if self.torch_name == "cpu":
            return 1
        import torch

        return torch.accelerator.device_count()

    def hardware(self) -> str:
        """The name of the accelerator that this process uses, or of the processor."""
        if self.torch_name == "cpu":
            return cpu_model()
        import torch

        return str(torch.get_device_module(torch.device(self.torch_name)).get_device_name())

    def torch_device(self) -> torch.device:
        """The torch device, prepared for use. Raises SettingsError with the reason if it cannot be used."""
        import torch

        reason = self.unavailable_reason()
        if reason is not None:
            raise SettingsError(f"device: got {self.name!r}, but {reason}, or set model.device: cpu")
        if not self.tested:
            _warn_untested(self.name)
        self.prepare()
        return torch.device(self.torch_name)


DEVICES = {
    "cpu": Device(
        "cpu", "cpu", "float32", "gloo", "CPU", ("sdpa", "reference"), prepare=_keep_freed_memory, tested=True
    ),
    # A test checks that `tested` of this device agrees with tests/gpu/LAST_RUN.md.
    "cuda": Device(
        "cuda",
        "cuda:0",
        "bfloat16",
        "nccl",
        "GPU",
        ("triton", "flash_attn", "sdpa"),
        timed_attention=("triton", "flash_attn"),
        compiles_kernels=True,
        captures_graphs=True,
        multiplies_fp8=True,
        unavailable_reason=_cuda_unavailable_reason,
        prepare=_prepare_cuda,
    ),
    "npu": Device(
        "npu",
        "npu:0",
        "bfloat16",
        "hccl",
        "NPU",
        ("npu", "sdpa", "reference"),
        unavailable_reason=npu.unavailable_reason,
    ),
}


def give_memory_back() -> None:
    """Return the memory that this process has freed, on the host and on an accelerator."""
    import torch

    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    with suppress(AttributeError, OSError):  # glibc keeps what is freed below memory in use
        ctypes.CDLL(None).malloc_trim(0)
