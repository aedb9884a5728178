"""Converts the `quantization_config` of an fp8 checkpoint (transformers' FineGrainedFP8, or compressed-tensors with
float weights of 8 bits) to its `Fp8Scales`, and back for saved checkpoints, without torch.

Which layers are converted is not read from the lists in it: the types of the checkpoint's tensors show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lopa_ray.model.config import Fp8Scales

READABLE = "fp8 (quant_method fp8, or compressed-tensors with float weights of 8 bits)"

_FINE_GRAINED_VALUES: Mapping[str, tuple[object, ...]] = {
    "activation_scheme": ("dynamic", "static", None),
    "fmt": ("e4m3", None),
    "scale_fmt": ("float", "ue8m0", None),
    "expert_dtype": ("fp8", None),
    "kv_cache_scheme": (None,),
    "kv_cache_quant_method": (None,),
}
"""Keys that affect the computation, with the values that `Fp8Scales` describes completely."""

_COMPRESSED_VALUES: Mapping[str, tuple[object, ...]] = {
    "format": ("float-quantized", "naive-quantized", None),
    "kv_cache_scheme": (None,),
    "quantization_status": ("compressed", "frozen", None),
    "sparsity_config": (None, {}),
    "transform_config": (None, {}),
}

_WEIGHTS_VALUES: Mapping[str, tuple[object, ...]] = {
    "symmetric": (True, None),
    "dynamic": (False, None),
    "actorder": (None,),
    "group_size": (None,),
}


def parse_fp8(stored: Mapping[str, Any]) -> Fp8Scales | str | None:
    """The scales that a `quantization_config` names; None if it is of no fp8 format, and if it is of one that is not
    read the key that is to blame, with its value."""
    if stored.get("quant_method") == "fp8":
        block = stored.get("weight_block_size")
        scales = Fp8Scales(kind="tensor") if block is None else _in_blocks("weight_block_size", block)
        return _refused(stored, _FINE_GRAINED_VALUES) or scales
    if stored.get("quant_method") != "compressed-tensors":
        return None
    groups = stored.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [scheme.get("weights") if isinstance(scheme, Mapping) else None for scheme in schemes]
    first = weights[0] if weights else None
    if not isinstance(first, Mapping) or (first.get("type"), first.get("num_bits")) != ("float", 8):
        return None
    if any(one != first for one in weights):
        return "config_groups with different weights"
    return _refused(stored, _COMPRESSED_VALUES) or _refused(first, _WEIGHTS_VALUES) or _compressed(first)


def channel_config(floating: Iterable[str]) -> dict[str, Any]:
    """The `quantization_config` of weights with a scale per channel, in the layout of compressed-tensors. `floating`:
    published names of linear modules that are not converted."""
    scheme = {"num_bits": 8, "type": "float", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": scheme | {"strategy": "channel", "dynamic": False},
                "input_activations": scheme | {"strategy": "token", "dynamic": True},
                "output_activations": None,
            }
        },
        "ignore": sorted(floating),
        "kv_cache_scheme": None,
    }


def _compressed(weights: Mapping[str, Any]) -> Fp8Scales | str:
    strategy = weights.get("strategy")
    if strategy in ("tensor", "channel"):
        return Fp8Scales(kind=strategy)
    if strategy == "block":
        return _in_blocks("block_structure", weights.get("block_structure"))
    return f"strategy = {strategy!r}"


def _in_blocks(key: str, block: object) -> Fp8Scales | str:
    if isinstance(block, (list, tuple)) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
        return Fp8Scales(kind="block", block=(block[0], block[1]))
    return f"{key} = {block!r}"


def _refused(stored: Mapping[str, Any], values: Mapping[str, tuple[object, ...]]) -> str | None:
    for key, allowed in values.items():
        if stored.get(key) not in allowed:
            return f"{key} = {stored[key]!r}"
    return None
