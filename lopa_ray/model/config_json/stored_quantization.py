"""Reads what a checkpoint's `quantization_config` says of its weights, and refuses what is not supported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config import QUANTIZATION_CONFIGS, Fp8Scales, Quantization
from lopa_ray.model.config_json.fp8_config import READABLE, parse_fp8
from lopa_ray.model.config_json.json_file import read_json
from lopa_ray.model.config_json.special_tokens import Json

KEY = "quantization_config"

_MODELOPT_FILE = "hf_quant_config.json"
"""The file of NVIDIA's Model Optimizer for it, next to a config.json that does not have it."""

_READ_ELSE = f"{READABLE} and this project's own int8 (lopa_ray_int8)"

_IDENTIFYING = ("quant_algo", "format", "bits", "w_bit", "nbits", "load_in_4bit", "load_in_8bit")
"""Keys that say which of a method's formats it is."""


def read_quantization(raw: Json, where: str) -> tuple[Quantization, Fp8Scales | None]:
    """The format of the weights that config.json `raw` describes, and their scales if it is fp8. Raises
    `CheckpointError` for one that is not read."""
    stored = raw.get(KEY)
    if stored is None:
        return "none", None
    for name, value in QUANTIZATION_CONFIGS.items():
        if value == stored:
            return name, None
    scales = parse_fp8(stored) if isinstance(stored, Mapping) else None
    if isinstance(scales, Fp8Scales):
        return "fp8", scales
    raise refusal(raw, where, problem=scales)


def refusal(raw: Json, where: str, *, problem: str | None = None, native: bool = True) -> CheckpointError:
    """The error for config.json `raw` with weights in a format that is not read; `problem`: the part that is to blame.
    `native`: whether this project's own transformer may run the model, for which there are fp8 and quantization."""
    got = describe(raw.get(KEY)) + (f" with {problem}" if problem else "")
    unread, advice = "weights in that format are not read", "use the unquantised (bfloat16) checkpoint"
    if not native:
        return CheckpointError(
            f"{where}: got {KEY} {got}; {unread} for models that transformers runs; {advice}"
        )
    return CheckpointError(
        f"{where}: got {KEY} {got}; {unread}, only {_READ_ELSE}; {advice}, and to save memory quantise it when it is "
        "loaded, with model.quantization: w8a8 or w8, or use one in fp8"
    )


def with_modelopt_file(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """config.json `raw` of `folder`, with the `quantization_config` of the file that Model Optimizer writes next to it.
    Raises `CheckpointError` if that file cannot be read."""
    if raw.get(KEY) is not None or not (folder / _MODELOPT_FILE).exists():
        return raw
    content = read_json(folder / _MODELOPT_FILE).get("quantization")
    return raw | {KEY: {"quant_method": "modelopt", **(content if isinstance(content, dict) else {})}}


def describe(stored: object) -> str:
    """A `quantization_config` in words: the method, and what else identifies it."""
    if not isinstance(stored, Mapping):
        return repr(stored)
    details = ", ".join(f"{key} {stored[key]}" for key in _IDENTIFYING if stored.get(key))
    return f"of quant_method {stored.get('quant_method')!r}" + (f" ({details})" if details else "")
