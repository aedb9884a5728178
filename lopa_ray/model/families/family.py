"""Family: how a published `config.json` and its tensor names map to this project's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config import QUANTIZATION_CONFIGS, NativeConfig
from lopa_ray.model.config_json.size_limits import LARGEST_EXPERTS, checked
from lopa_ray.model.config_json.special_tokens import TOKEN_ID_KEYS, Json, SpecialTokens
from lopa_ray.model.config_json.stored_quantization import read_quantization
from lopa_ray.model.experts_config import ExpertsConfig, RouterKind
from lopa_ray.model.families.published_family import PublishedFamily
from lopa_ray.model.families.rope import PARAMETERS, read_rope

_LAYER = re.compile(r"^layers\.(\d+)\.")

_DERIVED = ("num_kv_heads", "head_dim")
"""Fields that follow from others where a file does not have them."""

_RECOMPUTED_BUFFERS = re.compile(r"(.*\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(PublishedFamily):
    """A family that this project's own transformer runs, and transformers as well.

    `config_keys` maps a `NativeConfig` field to its published key, and `expert_keys` one of `ExpertsConfig`.
    `supported_values` lists, for keys that change the result, the only values that are computed here: any other value
    is refused, absence is not. A saved config.json has the first value, but for null. `published_modules`
    maps an own module (`{i}` is the layer) to the published modules whose rows it stacks, in that order; where these
    have an `{e}`, all of them for each expert in turn. `reads_yarn`: whether rotary embeddings of the type yarn are
    computed, which are refused elsewhere. `router`: how rows are routed in layers with experts, None in a family of
    dense models. `eos_key`: the key of EOS where there is no `eos_token_id`. `transformers_type` is the model type of
    transformers whose class computes the same, from a config.json with Qwen's keys and `transformers_expert_keys` for
    some of `expert_keys`. `tiny_model` is the recorded checkpoint (`tests/golden/models`) of the family in tests.
    """

    config_keys: Mapping[str, str]
    supported_values: Mapping[str, tuple[object, ...]]
    published_modules: Mapping[str, tuple[str, ...]]
    transformers_type: str
    tiny_model: str
    qkv_bias: bool = False
    qk_norm: bool = False
    reads_yarn: bool = False
    router: RouterKind | None = None
    expert_keys: Mapping[str, str] = field(default_factory=dict)
    transformers_expert_keys: Mapping[str, str] = field(default_factory=dict)
    eos_key: str = "eos_token_id"

    @property
    def has_experts(self) -> bool:
        return self.router is not None

    def published_names(self, parameter: str, num_experts: int = 0) -> tuple[str, ...]:
        """Published tensors that an own parameter (`layers.3.qkv.bias`) stacks along its rows, in order."""
        module, _, attribute = parameter.rpartition(".")
        layer = _LAYER.match(module)
        index = layer.group(1) if layer else ""
        template = _LAYER.sub("layers.{i}.", module)
        names = [f"{name.replace('{i}', index)}.{attribute}" for name in self.published_modules[template]]
        if "{e}" not in names[0]:
            return tuple(names)
        return tuple(name.replace("{e}", str(expert)) for expert in range(num_experts) for name in names)

    def ignores(self, tensor: str) -> bool:
        return _RECOMPUTED_BUFFERS.fullmatch(tensor) is not None

    def parse_config(self, raw: Json, generation: Json, where: str) -> NativeConfig:
        """Build a `NativeConfig` from config.json `raw`, special ids also from `generation`. Raises `CheckpointError`,
        naming `where` and the key, for a missing key, a bad value or a feature that this project does not compute."""
        self.note_assumed_type(raw, where)
        quantization, fp8 = read_quantization(raw, where)
        raw, yarn = read_rope(raw, where, reads_yarn=self.reads_yarn)
        stated = {**self.config_defaults, **raw}
        for key, allowed in self.supported_values.items():
            if key in stated and stated[key] not in allowed:
                shown = " or ".join(map(repr, allowed))
                got = f"{key} = {stated[key]!r}" if key in raw else f"no {key}, which means {stated[key]!r}"
                raise CheckpointError(
                    f"{where}: got {got}, but family {self.name} is supported with {shown} "
                    "only; use a checkpoint without that feature"
                )
        given = {key: value for key, value in raw.items() if value is not None}
        values = {**self.config_defaults, **given}
        sizes = _read_fields(NativeConfig, values, self.config_keys, where)
        heads, hidden = sizes["num_heads"], sizes["hidden_size"]
        is_uneven = "head_dim" not in sizes and hidden % heads
        kv_heads = sizes.setdefault("num_kv_heads", heads)
        head_dim = sizes.setdefault("head_dim", hidden // heads)
        rotary_factor = sizes.get("partial_rotary_factor", 1.0)
        if rotary_factor > 1 or int(head_dim * rotary_factor) % 2:
            raise CheckpointError(
                f"{where}: got partial_rotary_factor = {rotary_factor} of a head dim of {head_dim}; rotated dims are "
                "an even number, and not more than there are; correct the file"
            )
        if heads % kv_heads or head_dim % 2 or is_uneven:
            raise CheckpointError(
                f"{where}: got hidden size {hidden}, {heads} heads, {kv_heads} KV heads, head dim {head_dim}; heads "
                "must divide the hidden size, KV heads the heads, and the head dim must be even; correct the file"
            )
        ids = {"eos_token_id": raw.get(self.eos_key), **given}
        tokens = SpecialTokens.read(ids, generation, self.mask_token_id, sizes["vocab_size"], where)
        return NativeConfig(
            family=self.name,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            yarn=yarn,
            experts=self._experts(values, sizes["num_layers"], where),
            shifted=self.shifted,
            mask_token_id=tokens.mask,
            eos_token_id=tokens.eos,
            pad_token_id=tokens.pad,
            bos_token_id=tokens.bos,
            stop_token_ids=tokens.stops,
            delete_token_id=tokens.delete,
            split_token_id=tokens.split,
            quantization=quantization,
            fp8=fp8,
            **sizes,
        )

    def _experts(self, values: Json, num_layers: int, where: str) -> ExpertsConfig | None:
        if self.router is None:
            return None
        numbers = _read_fields(ExpertsConfig, values, self.expert_keys, where, "experts.")
        experts = ExpertsConfig(router=self.router, **numbers)
        problem = experts.problem
        if (total := experts.count * num_layers) > LARGEST_EXPERTS:
            problem = f"{total} experts in all layers; allowed: {LARGEST_EXPERTS}"
        if problem:
            raise CheckpointError(f"{where}: got {problem}; correct the file")
        return experts

    def to_config_json(self, config: NativeConfig) -> dict[str, Any]:
        """The published `config.json` of `config`, special ids included: what `parse_config` accepts, but for the
        scales of fp8 (see `channel_config`)."""
        raw: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        raw |= {key: first for key, (first, *_) in self.supported_values.items() if first is not None}
        raw |= {key: getattr(config, name) for name, key in self.config_keys.items() if name != "head_dim"}
        unused = () if config.routing_block else ("capacity", "block_size")
        keys = {name: key for name, key in self.expert_keys.items() if name not in unused}
        raw |= {key: getattr(config.experts, name) for name, key in keys.items()}
        key = self.config_keys["head_dim"]
        if config.head_dim != self.config_defaults.get(key, config.hidden_size / config.num_heads):
            raw[key] = config.head_dim
        if config.yarn is not None:
            raw[PARAMETERS] = config.yarn.to_json(raw.pop(self.config_keys["rope_theta"]))
        if config.quantization in QUANTIZATION_CONFIGS:
            raw["quantization_config"] = QUANTIZATION_CONFIGS[config.quantization]
        tokens = {key: getattr(config, key) for key in TOKEN_ID_KEYS}
        return raw | {key: token for key, token in tokens.items() if token is not None}


def _read_fields(
    config: type, values: Json, keys: Mapping[str, str], where: str, prefix: str = ""
) -> dict[str, Any]:
    """The fields of a configuration in `keys` (field → published key), each checked by its annotation."""
    return {
        field.name: checked(str(field.type), values.get(key), key, f"{prefix}{field.name}", where)
        for field in fields(config)
        if (key := keys.get(field.name)) is not None and (key in values or field.name not in _DERIVED)
    }


def fused_rows(config: NativeConfig, parameter: str) -> tuple[int, ...] | None:
    """Rows of each part of a fused own parameter, in order, and of one expert; None for one that is not fused."""
    owner, module = ["", *parameter.split(".")][-3:-1]
    if module == "qkv":
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return (q, kv, kv)
    if module != "gate_up":
        return None
    width = config.intermediate_size
    if config.experts is not None and owner in ("experts", "shared"):
        width = config.experts.columns if owner == "experts" else config.experts.shared_columns
    return (width, width)


def row_inputs(config: NativeConfig, parameter: str) -> int:
    """How many inputs a parameter of `o` or `down` has, of one expert if it stacks these."""
    owner, module = parameter.split(".")[-3:-1]
    if module == "o":
        return config.num_heads * config.head_dim
    columns = fused_rows(config, f"{owner}.gate_up.weight")
    assert columns is not None
    return columns[0]


def published_rows(family: Family, config: NativeConfig, parameter: str, total: int) -> dict[str, int]:
    """Published tensors of an own parameter of `total` rows (all experts' together) → the rows of each, in order."""
    names = family.published_names(parameter, config.experts.count if config.experts else 0)
    parts = fused_rows(config, parameter)
    if parts is None or len(names) == 1:  # not fused, or published so
        parts = (total // len(names),)
    return dict(zip(names, parts * (len(names) // len(parts)), strict=True))
