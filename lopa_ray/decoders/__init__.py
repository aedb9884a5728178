"""The decoders: one file, one subclass of `DecodeSession` each, registered by name."""

from lopa_ray.decoders.fast_dllm import FastDllmSession
from lopa_ray.decoders.lopa import LopaSession
from lopa_ray.session import DecodeSession

DecodeSession.decoders.update(lopa=LopaSession, d2f=LopaSession, fast_dllm=FastDllmSession)

__all__ = ["FastDllmSession", "LopaSession"]
