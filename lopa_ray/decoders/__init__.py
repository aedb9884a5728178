"""The decoders: one file, one subclass of `DecodeSession` each, registered by name."""

from lopa_ray.decoders.block_diffusion import BlockDiffusionSession
from lopa_ray.decoders.fast_dllm import FastDllmSession
from lopa_ray.decoders.lopa import LopaSession
from lopa_ray.decoders.vanilla import VanillaSession
from lopa_ray.session import DecodeSession

DecodeSession.decoders.update(
    lopa=LopaSession,
    d2f=LopaSession,
    vanilla=VanillaSession,
    fast_dllm=FastDllmSession,
    block_diffusion=BlockDiffusionSession,
)

__all__ = ["BlockDiffusionSession", "FastDllmSession", "LopaSession", "VanillaSession"]
