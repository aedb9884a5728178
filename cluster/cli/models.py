"""`lopa models`: the families and checkpoints that can be run, and what a checkpoint needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lopa_ray.config.yaml_files import read_config
from lopa_ray.engine.config import Config
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.config import Quantization
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.transformers_models.families import TRANSFORMERS_FAMILIES

WEIGHT_FORMATS: tuple[tuple[str, Quantization], ...] = (
    ("float32", "none"),
    ("bfloat16", "none"),
    ("bfloat16", "w8a8"),
)
"""Number formats that are compared, as `model.dtype` and `model.quantization`."""

_LEGEND = (
    "Checkpoints on the Hugging Face Hub by family: weights in bfloat16, settings for --config (with --model NAME "
    "where their name is another one's), the adapter of these settings, and what their authors published (TPF: tokens "
    "per forward pass). `lopa models NAME` computes what a checkpoint needs in all formats."
)
_OTHERS = (
    "model.implementation transformers runs other causal language models of transformers too, if their config.json "
    "names a mask_token_id (docs/models.md)."
)

PIPE_COLUMNS = 1000
WIDE_COLUMNS = 170
"""So wide a terminal has a column for each of name, preset and adapter."""
NARROW_COLUMNS = 80

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class FormatNeeds:
    """What a worker needs of memory with a model in one number format."""

    dtype: str
    quantization: Quantization
    weights_bytes: int
    kv_bytes_per_position: int
    kv_bytes_per_request: int
    """K/V of a request that fills `model.max_model_len`; every one in flight has as much reserved."""
    total_bytes: int
    """Weights, and the K/V of `model.max_num_seqs` requests."""


@dataclass(frozen=True, slots=True)
class CheckpointNeeds:
    """What the configuration of a checkpoint says."""

    path: str
    """With its commit, for a name on the Hub."""
    family: str
    implementation: str
    dtype: str
    """`model.dtype`, or what auto stands for on the configured device."""
    num_layers: int
    vocab_size: int
    max_model_len: int
    """Positions of a request, as configured."""
    max_num_seqs: int
    """Requests in flight, as configured."""
    tensor_parallel_sizes: list[int]
    """Over how many actors a worker's model can be cut."""
    formats: list[FormatNeeds]


def known_families() -> list[dict[str, Any]]:
    """The model families with a row of their own, native ones first.

    Each has a name, the values of `model.implementation` that run it (auto takes the first), what it was checked
    against, and its published checkpoints."""
    return [
        {
            "family": family.name,
            "implementations": implementations,
            "checked_against": family.checked_against,
            "checkpoints": [
                {**asdict(row), "family": family.name, "adapter": _adapter(row.preset)}
                for row in family.checkpoints
            ],
        }
        for implementations, families in (
            (["native", "transformers"], FAMILIES),
            (["transformers"], TRANSFORMERS_FAMILIES),
        )
        for family in families
    ]


def _adapter(preset: str | None) -> str | None:
    """The LoRA that a preset puts on its checkpoint."""
    return None if preset is None else read_config(preset)["model"].get("lora")


def checkpoints_table(families: Sequence[Mapping[str, Any]], columns: int) -> Table:
    """The published checkpoints. In few columns preset and adapter are below the name, in very few all is."""
    wide, narrow = columns >= WIDE_COLUMNS, columns < NARROW_COLUMNS
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("Hub name", overflow="fold", no_wrap=not narrow)
    if wide:
        table.add_column("--config")
        table.add_column("adapter")
    if not narrow:
        table.add_column("weights", justify="right", no_wrap=True)
        table.add_column("published")
    for family in families:
        for row in family["checkpoints"]:
            weights = f"{row['weights_gib']:.1f} GiB"
            preset, adapter, figures = row["preset"] or "", row["adapter"] or "", row["figures"]
            below = [] if wide else ["--config " * bool(preset) + preset, "+ " * bool(adapter) + adapter]
            below += [weights, figures] if narrow else []
            name = Text(row["name"], "bold")
            name.append("".join(f"\n{line}" for line in below if line), "not bold")
            table.add_row(name, *map(Text, [preset, adapter] * wide + [weights, figures] * (not narrow)))
        table.add_section()
    return table


def families_table(families: Sequence[Mapping[str, Any]]) -> Table:
    """What runs each family, and what its results were compared with."""
    table = Table("family", "model.implementation", "checked against", box=SIMPLE_HEAD, pad_edge=False)
    for family in families:
        row = (family["family"], ", ".join(family["implementations"]), family["checked_against"])
        table.add_row(*map(Text, row))
    return table


def checkpoint_needs(config: Config) -> CheckpointNeeds:
    """From the checkpoint's configuration alone; no weights are read or downloaded. Raises CheckpointError."""
    spec = ModelSpec.read(config)
    model = spec.model
    return CheckpointNeeds(
        spec.config.model.path,
        model.family,
        model.implementation,
        spec.config.model.dtype,
        model.num_layers,
        model.vocab_size,
        config.model.max_model_len,
        config.model.max_num_seqs,
        list(model.shard_sizes),
        [_format_needs(spec, *number_format) for number_format in _formats(spec)],
    )


def _formats(spec: ModelSpec) -> list[tuple[str, Quantization]]:
    """The configured format, then the other possible formats."""
    quantization = spec.model.quantization
    others: tuple[tuple[str, Quantization], ...] = WEIGHT_FORMATS
    if quantization == "fp8":  # bfloat16 alone is multiplied in it
        return [(spec.config.model.dtype, quantization), *WEIGHT_FORMATS]
    if quantization != "none":  # int8 in the checkpoint or in the settings
        others = tuple((dtype, quantization) for dtype, _ in WEIGHT_FORMATS[:2])
    elif spec.model.implementation == "transformers":
        others = WEIGHT_FORMATS[:2]
    return list(dict.fromkeys([(spec.config.model.dtype, quantization), *others]))


def _format_needs(spec: ModelSpec, dtype: str, quantization: Quantization) -> FormatNeeds:
    settings = spec.config.model.replace(dtype=dtype)
    model = spec.model.unfolded() if quantization == "none" else spec.model.with_quantization(quantization)
    formatted = replace(spec, config=spec.config.replace(model=settings), model=model)
    weights, slots = formatted.weight_bytes, formatted.slots_bytes
    request = slots // settings.max_num_seqs
    position = request // (settings.max_model_len + spec.model.canvas_length)
    return FormatNeeds(dtype, quantization, weights, position, request, weights + slots)


def needs_table(needs: CheckpointNeeds) -> Table:
    """For people to read."""
    table = Table(
        "",
        *(f"{column.dtype} {column.quantization}".removesuffix(" none") for column in needs.formats),
        box=SIMPLE_HEAD,
    )
    amounts = {
        "weights": "weights_bytes",
        "K/V per position": "kv_bytes_per_position",
        f"K/V per request of {needs.max_model_len} positions": "kv_bytes_per_request",
        f"in all, with {needs.max_num_seqs} requests": "total_bytes",
    }
    for name, amount in amounts.items():
        table.add_row(name, *(format_bytes(getattr(column, amount)) for column in needs.formats))
    return table


def needs_summary(needs: CheckpointNeeds) -> str:
    """The needs of a checkpoint that the table does not show."""
    sizes = ", ".join(map(str, needs.tensor_parallel_sizes))
    return (
        f"{needs.path}: family {needs.family}, {needs.num_layers} layers, vocabulary of {needs.vocab_size}; "
        f"model.implementation {needs.implementation}; model.dtype {needs.dtype}; "
        f"group.tensor_parallel_size {sizes}. Of each worker:"
    )


def format_bytes(amount: float) -> str:
    """In the largest unit that leaves one before the point."""
    for unit in _UNITS[:-1]:
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} {_UNITS[-1]}"


def print_families(*, as_json: bool) -> None:
    """Print the families and their published checkpoints, or a JSON object per family."""
    families = known_families()
    if as_json:
        print("\n".join(json.dumps(row) for row in families))
        return
    console = _console()
    console.print(_LEGEND, checkpoints_table(families, console.width), sep="\n")
    console.print(families_table(families), _OTHERS, sep="\n")


def print_needs(config: Config, *, as_json: bool) -> None:
    """Print what the configured checkpoint needs, as a table or as a JSON object. Raises CheckpointError."""
    needs = checkpoint_needs(config)
    if as_json:
        print(json.dumps(asdict(needs)))
    else:
        _console().print(needs_summary(needs), needs_table(needs), sep="\n")


def _console() -> Console:
    """For stdout. A pipe and a file have lines of any length."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)
