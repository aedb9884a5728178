"""Tiny checkpoints quantised to fp8 as other tools publish them, beside the floating checkpoint that they stand for."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.paths import MODELS

FP8_MAX = 448

CONVERTED = re.compile(
    r".*(_proj|attn_out|ff_out|attention\.dense|query_key_value)\.weight|.*experts.*_proj\.weight"
)
UNCONVERTED = re.compile(r".*\.1\.(self_attn\.)?k_proj\.weight|.*\.0\.(mlp\.)?(down_proj|ff_out)\.weight")
"""Of the converted modules those that checkpoints here leave as they are: one within a fused layer, and one alone."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tool writes fp8: what it says in config.json, and how scales are shaped and named."""

    quantization_config: dict[str, Any]
    scale_name: str
    block: tuple[int, int] | None = None
    """None: a scale per tensor or per row."""
    scale_shape: tuple[int, ...] | None = None
    """Of one scale per tensor; None: a scale per row, if there is no block."""
    scale_dtype: torch.dtype = torch.float32
    activation_scale: str | None = None


def compressed(strategy: str, form: str = "float-quantized", **weights: Any) -> dict[str, Any]:
    """The `quantization_config` of compressed-tensors for float weights of 8 bits."""
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    group = {
        "targets": ["Linear"],
        "weights": scheme | weights,
        "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
    }


def fine_grained(block: list[int] | None, **changes: Any) -> dict[str, Any]:
    """The `quantization_config` of transformers' FineGrainedFP8."""
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": block,
        "modules_to_not_convert": ["lm_head"],
    } | changes


LAYOUTS = {
    "blocks": Layout(fine_grained([128, 128]), "weight_scale_inv", (128, 128)),
    "odd_blocks": Layout(fine_grained([24, 40], fmt="e4m3"), "weight_scale_inv", (24, 40)),
    "powers_of_two": Layout(
        fine_grained([32, 32], scale_fmt="ue8m0"),
        "weight_scale_inv",
        (32, 32),
        scale_dtype=torch.float8_e8m0fnu,
    ),
    "static_tensor": Layout(
        fine_grained(None, activation_scheme="static"),
        "weight_scale_inv",
        scale_shape=(),
        activation_scale="activation_scale",
    ),
    "compressed_tensor": Layout(
        compressed("tensor", "naive-quantized"),
        "weight_scale",
        scale_shape=(1,),
        activation_scale="input_scale",
    ),
    "compressed_channel": Layout(compressed("channel"), "weight_scale", scale_dtype=torch.bfloat16),
    "compressed_blocks": Layout(compressed("block", block_structure=[32, 32]), "weight_scale", (32, 32)),
}


def quantise(weight: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """The fp8 weight, its scales as they are stored, and what both stand for, block by block."""
    rows, columns = weight.shape
    height, width = layout.block or ((rows, columns) if layout.scale_shape is not None else (1, columns))
    quantised, unfolded = torch.empty(rows, columns, dtype=torch.float8_e4m3fn), torch.empty(rows, columns)
    scales = torch.empty(-(-rows // height), -(-columns // width), dtype=layout.scale_dtype)
    for at in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            part = slice(at * height, (at + 1) * height), slice(column * width, (column + 1) * width)
            scale = weight[part].abs().max() / FP8_MAX
            if layout.scale_dtype == torch.float8_e8m0fnu:
                scale = torch.exp2(scale.log2().ceil())
            scales[at, column] = scale
            scale = scales[at, column].float()
            quantised[part] = (weight[part] / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
            unfolded[part] = quantised[part].float() * scale
    return quantised, scales if layout.scale_shape is None else scales.reshape(layout.scale_shape), unfolded


def save_fp8(name: str, layout: Layout, folder: Path, *, all_layers: bool = False) -> tuple[Path, Path]:
    """The recorded model `name` in a layout, and as the fp32 checkpoint that it stands for: two folders in `folder`."""
    stored, plain = folder / "fp8", folder / "plain"
    tensors = load_file(MODELS / name / "model.safetensors")
    unfolded = dict(tensors)
    for key, weight in list(tensors.items()):
        if weight.dim() != 2 or not CONVERTED.fullmatch(key) or key.endswith("transformer.ff_out.weight"):
            continue
        if UNCONVERTED.fullmatch(key) and not all_layers:
            continue
        module = key.removesuffix("weight")
        tensors[key], tensors[module + layout.scale_name], unfolded[key] = quantise(weight.float(), layout)
        if layout.activation_scale is not None:
            tensors[module + layout.activation_scale] = torch.tensor(0.01)
    for target, content in ((stored, tensors), (plain, unfolded)):
        shutil.copytree(MODELS / name, target)
        save_file(content, target / "model.safetensors")
    config = json.loads((stored / "config.json").read_text())
    (stored / "config.json").write_text(
        json.dumps(config | {"quantization_config": layout.quantization_config})
    )
    return stored, plain
