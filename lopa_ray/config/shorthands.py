"""Short names of settings, as command lines have them."""

from __future__ import annotations

SHORTHANDS = {
    "model": "model.path",
    "lora": "model.lora",
    "dtype": "model.dtype",
    "device": "model.device",
    "workers": "group.num_workers",
    "tensor_parallel_size": "group.tensor_parallel_size",
    "decoder": "decode.decoder",
    "num_branches": "decode.num_branches",
    "max_new_tokens": "decode.max_new_tokens",
    "temperature": "decode.temperature",
    "seed": "decode.seed",
}
"""Short name → the setting that it is short for, with its section."""
