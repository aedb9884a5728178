"""`lopa models CHECKPOINT`: the memory that a checkpoint needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from cluster.cli.model_families import console_for_lines
from lopa_ray.engine.config import Config
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.config import Quantization

WEIGHT_FORMATS: tuple[tuple[str, Quantization], ...] = (
    ("float32", "none"),
    ("bfloat16", "none"),
    ("bfloat16", "w8a8"),
)

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def checkpoint_needs(config: Config) -> dict[str, Any]:
    """Needs by the checkpoint's configuration alone; no weights are read or downloaded. Raises CheckpointError."""
    spec = ModelSpec.read(config)
    model = spec.model
    return {
        "path": spec.config.model.path,
        "family": model.family,
        "implementation": model.implementation,
        "dtype": spec.config.model.dtype,
        "num_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "max_model_len": config.model.max_model_len,
        "max_num_seqs": config.model.max_num_seqs,
        "tensor_parallel_sizes": list(model.shard_sizes),
        "formats": [_format_needs(spec, *number_format) for number_format in _formats(spec)],
    }


def _formats(spec: ModelSpec) -> list[tuple[str, Quantization]]:
    quantization = spec.model.quantization
    others: tuple[tuple[str, Quantization], ...] = WEIGHT_FORMATS
    if quantization == "fp8":  # bfloat16 alone is multiplied in it
        return [(spec.config.model.dtype, quantization), *WEIGHT_FORMATS]
    if quantization != "none":  # int8 in the checkpoint or in the settings
        others = tuple((dtype, quantization) for dtype, _ in WEIGHT_FORMATS[:2])
    elif spec.model.implementation == "transformers":
        others = WEIGHT_FORMATS[:2]
    return list(dict.fromkeys([(spec.config.model.dtype, quantization), *others]))


def _format_needs(spec: ModelSpec, dtype: str, quantization: Quantization) -> dict[str, Any]:
    settings = spec.config.model.replace(dtype=dtype)
    model = spec.model.unfolded() if quantization == "none" else spec.model.with_quantization(quantization)
    formatted = replace(spec, config=spec.config.replace(model=settings), model=model)
    weights, slots = formatted.weight_bytes, formatted.slots_bytes
    # Each request in flight has room reserved for `model.max_model_len` positions.
    request = slots // settings.max_num_seqs
    return {
        "dtype": dtype,
        "quantization": quantization,
        "weights_bytes": weights,
        "kv_bytes_per_position": request // (settings.max_model_len + spec.model.canvas_length),
        "kv_bytes_per_request": request,
        "total_bytes": weights + slots,
    }


def needs_table(needs: Mapping[str, Any]) -> Table:
    formats = needs["formats"]
    heads = [f"{column['dtype']} {column['quantization']}".removesuffix(" none") for column in formats]
    table = Table("", *heads, box=SIMPLE_HEAD)
    amounts = {
        "weights": "weights_bytes",
        "K/V per position": "kv_bytes_per_position",
        f"K/V per request of {needs['max_model_len']} positions": "kv_bytes_per_request",
        f"in all, with {needs['max_num_seqs']} requests": "total_bytes",
    }
    for name, amount in amounts.items():
        table.add_row(name, *(format_bytes(column[amount]) for column in formats))
    return table


def needs_summary(needs: Mapping[str, Any]) -> str:
    return (
        "{path}: family {family}, {num_layers} layers, vocabulary of {vocab_size}; "
        "model.implementation {implementation}; model.dtype {dtype}; "
        "group.tensor_parallel_size {sizes}. Of each worker:"
    ).format(sizes=", ".join(map(str, needs["tensor_parallel_sizes"])), **needs)


def format_bytes(amount: float) -> str:
    """An amount in the first unit in which it is below 1024."""
    for unit in _UNITS[:-1]:
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} {_UNITS[-1]}"


def print_needs(config: Config, *, as_json: bool) -> None:
    """Print what the configured checkpoint needs, as a table or as a JSON object. Raises CheckpointError."""
    needs = checkpoint_needs(config)
    if as_json:
        print(json.dumps(needs))
    else:
        console_for_lines().print(needs_summary(needs), needs_table(needs), sep="\n")
