"""Triton kernel of `add_rms_norm`: that of `rms_norm`, with a sum before it."""

from lopa_ray.kernels.triton.rms_norm import launch_add as launch

__all__ = ["launch"]
