"""A checkpoint's configuration files, read into a `ModelConfig` without its weights, so without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, overload

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.folder_contents import lacking, refuse_broken_links, require_folder
from lopa_ray.model.checkpoint.generation_defaults import GENERATION
from lopa_ray.model.config import DRAFT_LAYERS, DraftHeadShape, DraftWidths, Implementation, NativeConfig
from lopa_ray.model.config_json.json_file import read_json
from lopa_ray.model.config_json.size_limits import checked_int
from lopa_ray.model.config_json.stored_quantization import with_modelopt_file
from lopa_ray.model.families.native import FAMILIES, family_of, find_family
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.model.transformers_models.config import parse_transformers_config

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
DRAFT_FOLDER = "linear_spec_lora"
"""The folder in which repositories of Nemotron-Labs-Diffusion have their draft adapter."""

DRAFT_HEAD = "draft_head.safetensors"
"""The file in which a checkpoint has a draft head beside its weights."""


def draft_widths(folder: Path, config: ModelConfig) -> DraftWidths:
    """The draft adapters of a layer of `config`, by the configuration of the PEFT adapter in `folder`. Raises
    CheckpointError for modules that are not in `DRAFT_LAYERS`, and for a part of those that one layer fuses."""
    file = folder / ADAPTER_CONFIG
    if not file.exists():
        raise CheckpointError(
            f"{folder}: got no {ADAPTER_CONFIG}; need the folder of a PEFT adapter for drafts, or a name on the Hub "
            f"whose folder {DRAFT_FOLDER} has one"
        )
    raw = read_json(file)
    rank, targets = checked_int(raw.get("r"), "r", "hidden_size", str(file)), raw.get("target_modules")
    if not isinstance(config, NativeConfig):
        return ()
    if not isinstance(targets, list) or not targets:
        raise CheckpointError(
            f"{file}: got target_modules = {targets!r}; need a list of modules: name them one by one"
        )
    modules = family_of(config).published_modules
    may_have = DRAFT_LAYERS if config.experts is None else DRAFT_LAYERS[:2]
    widths, unknown = [], set(map(str, targets))
    for layer in may_have:
        published = modules[f"layers.{{i}}.{layer}"]
        found = {
            name: target for target in targets for name in published if f".{name}".endswith(f".{target}")
        }
        if found and (missing := set(published) - found.keys()):
            raise CheckpointError(
                f"{file}: target_modules has {', '.join(found.values())} without {_last(min(missing))}, which is one "
                "layer with it here; a draft adapter has all of them, or none: use another one"
            )
        if found:
            widths.append((layer, rank * len(published)))
            unknown -= set(found.values())
    if unknown:
        known = ", ".join(_last(name) for layer in may_have for name in modules[f"layers.{{i}}.{layer}"])
        raise CheckpointError(
            f"{file}: got target_modules with {', '.join(sorted(unknown))}; a draft adapter of a {config.family} model "
            f"may have {known}: use another one"
        )
    return tuple(widths)


def draft_head_shape(folder: Path) -> DraftHeadShape | None:
    """The shape of the draft head that the checkpoint `folder` has beside its weights; None: it has none. Raises
    CheckpointError for a file that cannot be read."""
    file = folder / DRAFT_HEAD
    if not file.exists():
        return None
    from safetensors import SafetensorError, safe_open  # engines start without it

    try:
        with safe_open(file, framework="numpy") as handle:
            width, _ = handle.get_slice("mix.weight").get_shape()
            (num_tokens,) = handle.get_slice("tokens").get_shape()
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: no draft head ({error}); remove it, or fetch it again") from None
    return num_tokens, width


def _last(module: str) -> str:
    return module.rpartition(".")[2]


@overload
def load_config(
    path: str | Path, implementation: Literal["native"] = "native", mask_token_id: int | None = None
) -> NativeConfig: ...


@overload
def load_config(
    path: str | Path, implementation: Implementation, mask_token_id: int | None = None
) -> ModelConfig: ...


def load_config(
    path: str | Path, implementation: Implementation = "native", mask_token_id: int | None = None
) -> ModelConfig:
    """Read the `ModelConfig` of the checkpoint folder `path`, without its weights. With `implementation` auto this
    project's own transformer runs the model where it can, and else transformers. `mask_token_id` is taken where the
    folder's configuration names none. Raises `CheckpointError` for a missing or broken file, an unknown architecture,
    or a feature that is not computed."""
    folder = Path(path)
    require_folder(path, f"a checkpoint: a folder with {CONFIG}")
    if not (folder / CONFIG).exists():
        raise lacking(folder, CONFIG)
    refuse_broken_links(folder)
    raw = with_modelopt_file(read_json(folder / CONFIG), folder)
    generation = read_json(folder / GENERATION) if (folder / GENERATION).exists() else {}
    if mask_token_id is not None and generation.get("mask_token_id") is None:
        generation = {**generation, "mask_token_id": mask_token_id}
    where = str(folder / CONFIG)
    is_claimed = implementation == "auto" and any(family.claims(raw) for family in FAMILIES)
    if is_claimed or implementation == "native":
        return find_family(raw, where).parse_config(raw, generation, where)
    return parse_transformers_config(raw, generation, where)
