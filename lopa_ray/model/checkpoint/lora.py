"""PEFT LoRA adapters, merged into the published tensors at load."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.config_files import ADAPTER_CONFIG
from lopa_ray.model.checkpoint.folder_contents import lacking, require_folder
from lopa_ray.model.checkpoint.tensor_files import TensorFiles
from lopa_ray.model.checkpoint.weight_source import WeightSource
from lopa_ray.model.config_json.json_file import read_json

ADAPTER_WEIGHTS = "adapter_model.safetensors"

MATCH_S = 10.0
"""Time for all patterns of a setting. Usual patterns take milliseconds."""

_TOKENS = "trainable_token_indices"
_TOKEN_VECTORS = ".token_adapter.trainable_tokens_delta"
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
# Settings with no bearing on the merged weights, or that this file reads below.
_HANDLED_SETTINGS = {
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
    "lora_dropout", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "peft_version",
    "inference_mode", "megatron_core", "qalora_group_size", "eva_config",
}  # fmt: skip
# Settings that may have a value other than null, false or empty. Initialisations that are
# not listed (PiSSA, OLoRA, LoftQ, CorDA, LoRA-GA) rewrite the base weights as well.
_SUPPORTED_VALUES: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """The tensors of one adapter: for a published weight W [out, in], W + scale * B [out, r] A [r, in]."""

    path: Path
    tensor_files: TensorFiles
    scales: Mapping[str, float]  # published module -> scale
    target_modules: tuple[str, ...]
    trains_token: bool

    @staticmethod
    def load(
        path: str | Path, shapes: Mapping[str, tuple[int, ...]], *, token: int | None = None
    ) -> LoraAdapter:
        """Read adapter_config.json and the header of adapter_model.safetensors in the folder `path`. Raises
        `CheckpointError` for a missing or broken file, for any setting that would change the result and is not
        supported (by its name), for a tensor that is not one half of a LoRA pair, and for a pair that does not fit the
        published `shapes` (tensor name -> shape). `token`: the one token that may have a trained embedding; None:
        there is none."""
        folder = Path(path)
        require_folder(path, f"a PEFT adapter: a folder with {ADAPTER_CONFIG}")
        where = folder / ADAPTER_CONFIG
        if not where.exists():
            raise lacking(folder, ADAPTER_CONFIG)
        raw = read_json(where)
        tokens = raw.get(_TOKENS)
        if isinstance(tokens, dict) and len(tokens) == 1:  # by module, of which one alone has embeddings
            (tokens,) = tokens.values()
        trains_token = token is not None and tokens == [token]
        _refuse_unsupported({**raw, _TOKENS: tokens}, where, {_TOKENS: (None, [token])})
        targets = raw.get("target_modules")
        if not (folder / ADAPTER_WEIGHTS).exists():
            raise lacking(folder, ADAPTER_WEIGHTS)
        tensor_files = TensorFiles.scan([folder / ADAPTER_WEIGHTS])
        modules = _adapted_modules(tensor_files, folder / ADAPTER_WEIGHTS, trains_token=trains_token)
        ranks = _matching_values(raw, "rank_pattern", modules, where, raw.get("r"))
        alphas = _matching_values(raw, "alpha_pattern", modules, where, raw.get("lora_alpha"))
        scales = {
            module: _scale(raw, module, rank, alpha, tensor_files, where)
            for module, rank, alpha in zip(modules, ranks, alphas, strict=True)
        }
        # A regular expression or an exclusion says less plainly what must be there.
        plain = isinstance(targets, list) and not raw.get("exclude_modules")
        listed = tuple(map(str, targets)) if plain and targets else ()
        adapter = LoraAdapter(folder, tensor_files, scales, listed, trains_token)
        adapter._check_shapes(shapes)
        return adapter

    def _check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        file = self.path / ADAPTER_WEIGHTS
        for module in self.scales:
            shape = shapes.get(f"{module}.weight", ())
            if len(shape) != 2:
                raise CheckpointError(
                    f"{file}: tensor {_lora_tensor(module, 'A')} adapts {module}, which is not a linear layer of "
                    "the model; use the adapter with the model it was trained on"
                )
            a, b = (self.tensor_files.shapes[_lora_tensor(module, half)] for half in "AB")
            if (b[0], a[1]) != shape:
                raise CheckpointError(
                    f"{file}: tensors {_lora_tensor(module, 'A')} {list(a)} and {_lora_tensor(module, 'B')} {list(b)} "
                    f"do not fit {module}.weight {list(shape)}; use the adapter with the model it was trained on"
                )
        for name, shape in shapes.items():
            module = name.removesuffix(".weight")
            listed = any(f".{module}".endswith(f".{target}") for target in self.target_modules)
            if name != module and len(shape) == 2 and listed and module not in self.scales:
                raise CheckpointError(
                    f"{file}: tensor {_lora_tensor(module, 'A')} is missing, though target_modules of {ADAPTER_CONFIG} "
                    "lists it; download the adapter again"
                )

    def changes(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        return name != module and module in self.scales

    def merge(self, name: str, weight: Tensor) -> Tensor:
        """The published tensor `name` [outputs, inputs] plus its update, in fp32; `weight` itself if it has none."""
        if not self.changes(name):
            return weight
        module = name.removesuffix(".weight")
        a, b = self.pair(module)
        return weight.float() + self.scales[module] * (b @ a)

    def pair(self, module: str) -> tuple[Tensor, Tensor]:
        """A [r, in] and B [out, r] of an adapted published module, in fp32."""
        a, b = (self.tensor_files.read_tensor(_lora_tensor(module, half)).float() for half in "AB")
        return a, b

    def token_vector(self, embedding: str, size: int) -> Tensor | None:
        """The vector [size] of the trained token, in fp32, which is to replace its row of the published tensor
        `embedding`; None if there is none. Raises CheckpointError if it is missing or has another size."""
        if not self.trains_token:
            return None
        name = f"base_model.model.{embedding.removesuffix('.weight')}{_TOKEN_VECTORS}"
        shape = self.tensor_files.shapes.get(name)
        if shape != (1, size):
            got = "no tensor" if shape is None else f"shape {list(shape)} of tensor"
            raise CheckpointError(
                f"{self.path / ADAPTER_WEIGHTS}: got {got} {name}; with {_TOKENS} it has shape {[1, size]}: use the "
                "adapter with the model it was trained on"
            )
        return self.tensor_files.read_tensor(name).float()[0]


@dataclass(frozen=True, slots=True)
class MergedAdapters:
    """The adapters of a model, which are merged one after the other; tensors in `kept` stay as they are."""

    adapters: tuple[LoraAdapter, ...]
    kept: Collection[str]

    @staticmethod
    def load(
        source: WeightSource, tensor_files: TensorFiles, shapes: Mapping[str, tuple[int, ...]]
    ) -> MergedAdapters:
        """The adapters of `source`. `shapes`, and what is raised: see `LoraAdapter.load`."""
        adapters = tuple(LoraAdapter.load(path, shapes) for path in source.loras)
        return MergedAdapters(adapters, tensor_files.given.keys())

    def changes(self, name: str) -> bool:
        return name not in self.kept and any(adapter.changes(name) for adapter in self.adapters)

    def merge(self, name: str, weight: Tensor) -> Tensor:
        """See `LoraAdapter.merge`."""
        for adapter in self.adapters if self.changes(name) else ():
            weight = adapter.merge(name, weight)
        return weight


def _lora_tensor(module: str, half: str) -> str:
    return f"base_model.model.{module}.lora_{half}.weight"


def _refuse_unsupported(
    raw: Mapping[str, Any], where: Path, more_values: Mapping[str, tuple[object, ...]]
) -> None:
    supported = {**_SUPPORTED_VALUES, **more_values}
    if "peft_type" not in raw:
        raise CheckpointError(f"{where}: got no peft_type; it must be 'LORA'; need the file that PEFT saved")
    for key, value in raw.items():
        if key in _HANDLED_SETTINGS or value in supported.get(key, (None, False, [], {})):
            continue
        allowed = " or ".join(map(repr, supported.get(key, ("null or false",))))
        raise CheckpointError(
            f"{where}: got {key} = {value!r}, allowed is {allowed}; LoRA adapters are merged without it: "
            f"merge the adapter with PEFT and load the merged checkpoint"
        )


def _adapted_modules(tensor_files: TensorFiles, file: Path, *, trains_token: bool) -> list[str]:
    """Adapted published modules, each with both halves; any other tensor is an error, but for a trained token's."""
    modules: dict[str, None] = {}
    for name, shape in tensor_files.shapes.items():
        if trains_token and name.endswith(_TOKEN_VECTORS):
            continue
        match = _TENSOR.fullmatch(name)
        if not match or len(shape) != 2:
            raise CheckpointError(
                f"{file}: got tensor {name} of shape {list(shape)}; allowed are "
                "base_model.model.<module>.lora_A.weight and lora_B.weight with two dimensions; merge the "
                "adapter with PEFT and load the merged checkpoint"
            )
        other = _lora_tensor(match["module"], "B" if match["half"] == "A" else "A")
        if other not in tensor_files.shapes:
            raise CheckpointError(
                f"{file}: tensor {other} is missing, {name} needs it; download the adapter again"
            )
        modules[match["module"]] = None
    if not modules:
        raise CheckpointError(f"{file}: got no tensors; need LoRA pairs; download the adapter again")
    return list(modules)


def _scale(
    raw: Mapping[str, Any], module: str, rank: Any, alpha: Any, tensor_files: TensorFiles, where: Path
) -> float:
    """alpha / r, or alpha / sqrt(r) with use_rslora; checks r against the tensors."""
    for key, value in (("r", rank), ("lora_alpha", alpha)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise CheckpointError(f"{where}: got {key} = {value!r} for {module}; it must be a number above 0")
    name = _lora_tensor(module, "A")
    a, b = tensor_files.shapes[name], tensor_files.shapes[_lora_tensor(module, "B")]
    if a[0] != rank or b[1] != rank:
        raise CheckpointError(
            f"{tensor_files.files[name]}: tensors {name} {list(a)} and lora_B {list(b)} do not have the rank {rank} "
            f"of {where}; use configuration and tensors of the same adapter"
        )
    return float(alpha / math.sqrt(rank) if raw.get("use_rslora") else alpha / rank)


def _matching_values(
    raw: Mapping[str, Any], key: str, modules: Sequence[str], where: Path, default: Any
) -> list[Any]:
    """PEFT's look-up for each module: the first pattern that matches the end of its path wins."""
    patterns = raw.get(key) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{where}: got {key} = {patterns!r}; it must be an object of module patterns")
    stop = time.monotonic() + MATCH_S
    found = [default] * len(modules)
    try:
        # PEFT has Python's `re`, which nothing can interrupt.
        compiled = [(regex.compile(rf"(.*\.)?({pattern})$"), value) for pattern, value in patterns.items()]
        for at, module in enumerate(modules):
            left = max(1e-3, stop - time.monotonic())
            matching = (value for pattern, value in compiled if pattern.match(module, timeout=left))
            found[at] = next(matching, default)
    except TimeoutError:
        raise CheckpointError(f"{where}: got {key} patterns that take too long; correct the file") from None
    except (regex.error, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{where}: got {key} {str(list(patterns))[:200]}, not regular expressions ({error}); correct the file"
        ) from None
    return found
