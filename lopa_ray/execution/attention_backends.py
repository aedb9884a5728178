"""The attention backends by name, and the selection among them."""

from __future__ import annotations

import logging
import time

import torch

from lopa_ray.errors import SettingsError
from lopa_ray.execution import npu
from lopa_ray.execution.attention import SDPA_ATTENTION, AttentionBackend, LaneAttention, PackedAttention
from lopa_ray.execution.attention_trial import SMALL_STEP, AttentionTrial, branches_of_a_step
from lopa_ray.execution.canvas_attention import default_attention
from lopa_ray.execution.device import Device
from lopa_ray.execution.flash_attention import VERSIONS, FlashAttention
from lopa_ray.execution.masked_attention import MaskedAttention
from lopa_ray.kernels.operators import triton_failure
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.model.transformers_models.model_config import CanvasConfig

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Maximum difference of a backend's result from attention in fp32, on normally distributed input."""

TIMED_CALLS = 20

_log = logging.getLogger("lopa.attention")


BACKENDS: dict[str, tuple[AttentionBackend, ...]] = {
    "sdpa": (MaskedAttention(), SDPA_ATTENTION),
    "triton": (PackedAttention(needs_triton=True),),
    "flash_attn": tuple(FlashAttention(version) for version in VERSIONS),
    "npu": (LaneAttention(npu.attention),),
    "reference": (PackedAttention(),),
}
"""Value of `model.attention` → backends, of which the first that works is used. `MaskedAttention` is not used where the
bits of a row must not depend on other lanes: in float32, and with `model.batch_invariant`."""


def select_backend(
    name: str, device: Device, config: ModelConfig, dtype: torch.dtype, capacity: int
) -> AttentionBackend:
    """The backend that `model.attention` names, after a trial on the device with slots of `capacity` positions. Raises
    SettingsError if it does not run there, or if its results are wrong; for auto see `resolve_attention`."""
    if isinstance(config, CanvasConfig):
        if name not in ("auto", "sdpa"):
            raise config.refusal("model.attention", repr(name), "auto or sdpa; use auto")
        return default_attention(config)
    if name == "auto":
        name = resolve_attention(device, config, dtype, capacity)
    backend = _first_that_works(name, device, config, dtype, capacity)
    if isinstance(backend, str):
        raise SettingsError(
            f"model.attention: got {name!r}, but {backend}; "
            f"allowed on {device.name}: auto, {', '.join(device.attention_backends)}; use auto"
        )
    return backend


def resolve_attention(device: Device, config: ModelConfig, dtype: torch.dtype, capacity: int) -> str:
    """The backend that auto selects: the fastest of `Device.timed_attention`, or, if that is empty, the first that
    works. Raises SettingsError if none does, and where the device needs Triton's kernels and Triton does not work."""
    slower = [name for name in device.attention_backends if name not in device.timed_attention]
    if device.compiles_kernels and (failure := triton_failure()) is not None:
        raise SettingsError(
            f"model.attention: got 'auto', but Triton does not work here ({failure}), and a step without its kernels "
            "takes many times as long; install the package triton and a C compiler, or name a backend without them "
            f"({', '.join(slower)}) to accept that"
        )
    reasons: list[str] = []
    seconds: dict[str, float] = {}
    for name in device.timed_attention or device.attention_backends:
        backend = _first_that_works(name, device, config, dtype, capacity)
        if isinstance(backend, str):
            reasons.append(backend)
            continue
        if not device.timed_attention:
            seconds[name] = 0.0
            break
        try:
            seconds[name] = _seconds(backend, device, config, dtype, capacity)
            reasons.append(f"{name} takes {1e6 * seconds[name]:.0f} µs per layer")
        # A backend that works for a small step may fail for a step of usual size, for example for lack of memory.
        except Exception as error:
            reasons.append(_failure(name, error))
    if not seconds:
        slow = f"; name one of {', '.join(slower)} to accept slower steps" if device.timed_attention else ""
        raise SettingsError(f"model.attention: got 'auto', but {'; '.join(reasons)}{slow}")
    chosen = min(seconds, key=lambda name: seconds[name])
    _log.info("attention on %s: %s (%s)", device.name, chosen, "; ".join(reasons) or "first choice")
    return chosen


def _first_that_works(
    name: str, device: Device, config: ModelConfig, dtype: torch.dtype, capacity: int
) -> AttentionBackend | str:
    """The first backend of that name that works in a trial, or why none does."""
    if name not in device.attention_backends:
        return f"{name} is not for {device.name}"
    reasons = []
    is_exact = dtype == torch.float32 or (isinstance(config, NativeConfig) and config.batch_invariant)
    for backend in BACKENDS[name]:
        if is_exact and isinstance(backend, MaskedAttention):
            continue
        try:
            trial = AttentionTrial(
                backend, config, dtype, torch.device(device.torch_name), SMALL_STEP, capacity
            )
            off = (trial.run().float() - trial.formula()).abs().max().item()
        # Any exception of a kernel, its import or its compiler is returned as the reason.
        except Exception as error:
            reasons.append(_failure(name, error))
            continue
        if off <= TOLERANCE[dtype]:
            return backend
        reasons.append(f"{name} is off by {off:.1g}")
    return ", ".join(dict.fromkeys(reasons))


def _failure(name: str, error: Exception) -> str:
    return f"{name} fails with {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _seconds(
    backend: AttentionBackend, device: Device, config: ModelConfig, dtype: torch.dtype, capacity: int
) -> float:
    """Mean seconds of one layer's attention in a step of usual size, including the time of the host."""
    where = torch.device(device.torch_name)
    trial = AttentionTrial(backend, config, dtype, where, branches_of_a_step(capacity), capacity)
    for calls in (3, TIMED_CALLS):
        began = time.perf_counter()
        for _ in range(calls):
            trial.run()
        torch.accelerator.synchronize()
    return (time.perf_counter() - began) / TIMED_CALLS
