"""Family: how a published `config.json` and its tensor names map to this project's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.size_limits import LARGEST_EXPERTS, checked_int, wrong_value
from lopa_ray.model.checkpoint.special_tokens import TOKEN_ID_KEYS, Json, SpecialTokens
from lopa_ray.model.config import QUANTIZATION_CONFIGS, NativeConfig
from lopa_ray.model.experts_config import ExpertsConfig, RouterKind
from lopa_ray.model.families.published_family import PublishedFamily
from lopa_ray.model.families.rope import flatten_rope
from lopa_ray.model.quantization.stored_quantization import read_quantization
from lopa_ray.model.yarn import KEY as YARN_KEY, split_yarn

_LAYER = re.compile(r"^layers\.(\d+)\.")

_MAY_BE_ZERO = ("shared", "dense_layers")

_RECOMPUTED_BUFFERS = re.compile(r"(.*\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(PublishedFamily):
    """A family that this project's own transformer runs, and transformers as well.

    `config_keys` maps a `NativeConfig` field to its published key, and `expert_keys` one of `ExpertsConfig`.
    `supported_values` lists, for keys that change the result, the only values that are computed here: any other value
    is refused, absence is not. A saved config.json has the first ones, but for null. `published_modules` maps an own
    module (`{i}` is the layer) to the published modules whose rows it stacks, in that order; where these have an `{e}`,
    all of them for each expert in turn. `reads_yarn`: whether rotary embeddings of the type yarn are computed, which
    are refused elsewhere. `router`: how rows are routed in layers with experts, None in a family of dense models.
    `eos_key`: the key of EOS where there is no `eos_token_id`. `transformers_type` is the model type of transformers
    whose class computes the same, from a config.json with Qwen's keys and `transformers_expert_keys` for some of
    `expert_keys`. `tiny_model` is the recorded checkpoint (`tests/golden/models`) with which tests run the family.
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
        raw, yarn = split_yarn(raw, where) if self.reads_yarn else (raw, None)
        raw = flatten_rope(raw, where)
        stated = {**self.config_defaults, **raw}
        for key, allowed in self.supported_values.items():
            if key in stated and stated[key] not in allowed:
                shown = " or ".join(repr(value) for value in allowed)
                got = f"{key} = {stated[key]!r}" if key in raw else f"no {key}, which means {stated[key]!r}"
                raise CheckpointError(
                    f"{where}: got {got}, but family {self.name} is supported with {shown} "
                    "only; use a checkpoint without that feature"
                )
        expert_keys = {f"experts.{name}": key for name, key in self.expert_keys.items()}
        keys = {**self.config_keys, **expert_keys}
        given = {key: value for key, value in raw.items() if value is not None}
        reader = _ConfigReader({**raw, **self.config_defaults, **given}, keys, where)
        heads, hidden = reader.positive_int("num_heads"), reader.positive_int("hidden_size")
        kv_heads = reader.positive_int("num_kv_heads", heads)
        head_dim = reader.positive_int("head_dim", hidden // heads)
        rotary_factor = reader.positive_float("partial_rotary_factor", 1.0)
        if rotary_factor > 1 or int(head_dim * rotary_factor) % 2:
            raise CheckpointError(
                f"{where}: got partial_rotary_factor = {rotary_factor} of a head dim of {head_dim}; rotated dims are "
                "an even number, and not more than there are; correct the file"
            )
        if heads % kv_heads or head_dim % 2 or ("head_dim" not in reader and hidden % heads):
            raise CheckpointError(
                f"{where}: got hidden size {hidden}, {heads} heads, {kv_heads} KV heads, head dim {head_dim}; heads "
                "must divide the hidden size, KV heads the heads, and the head dim must be even; correct the file"
            )
        vocab = reader.positive_int("vocab_size")
        ids = {"eos_token_id": raw.get(self.eos_key), **given}
        tokens = SpecialTokens.read(ids, generation, self.mask_token_id, vocab, where)
        return NativeConfig(
            family=self.name,
            vocab_size=vocab,
            hidden_size=hidden,
            num_layers=reader.positive_int("num_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=reader.positive_int("intermediate_size"),
            rope_theta=reader.positive_float("rope_theta"),
            rms_norm_eps=reader.positive_float("rms_norm_eps"),
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            partial_rotary_factor=rotary_factor,
            yarn=yarn,
            experts=self._experts(reader),
            tie_word_embeddings=reader.boolean("tie_word_embeddings"),
            shifted=self.shifted,
            mask_token_id=tokens.mask,
            eos_token_id=tokens.eos,
            pad_token_id=tokens.pad,
            bos_token_id=tokens.bos,
            stop_token_ids=tokens.stops,
            max_position_embeddings=reader.positive_int("max_position_embeddings"),
            quantization=quantization,
            fp8=fp8,
        )

    def _experts(self, reader: _ConfigReader) -> ExpertsConfig | None:
        if self.router is None:
            return None
        numbers: dict[str, Any] = {
            name: reader.positive_int(f"experts.{name}", minimum=0 if name in _MAY_BE_ZERO else 1)
            for name in self.expert_keys
            if name != "scale"
        }
        scale = reader.positive_float("experts.scale", 1.0)
        experts = ExpertsConfig(router=self.router, scale=scale, **numbers)
        problem = experts.problem
        if (total := experts.count * reader.positive_int("num_layers")) > LARGEST_EXPERTS:
            problem = f"{total} experts in all layers; allowed: {LARGEST_EXPERTS}"
        if problem:
            raise CheckpointError(f"{reader.where}: got {problem}; correct the file")
        return experts

    def to_config_json(self, config: NativeConfig) -> dict[str, Any]:
        """The published `config.json` of `config`, special ids included: what `parse_config` accepts, but for the
        scales of fp8 (see `channel_config`)."""
        raw: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        raw |= {key: first for key, (first, *_) in self.supported_values.items() if first is not None}
        raw |= {key: getattr(config, name) for name, key in self.config_keys.items() if name != "head_dim"}
        raw |= {key: getattr(config.experts, name) for name, key in self.expert_keys.items()}
        key = self.config_keys["head_dim"]
        if config.head_dim != self.config_defaults.get(key, config.hidden_size / config.num_heads):
            raw[key] = config.head_dim
        if config.yarn is not None:
            raw[YARN_KEY] = config.yarn.to_json(raw.pop(self.config_keys["rope_theta"]))
        if config.quantization in QUANTIZATION_CONFIGS:
            raw["quantization_config"] = QUANTIZATION_CONFIGS[config.quantization]
        return raw | {key: getattr(config, key) for key in TOKEN_ID_KEYS}


@dataclass(frozen=True, slots=True)
class _ConfigReader:
    """Typed look-ups of `NativeConfig` fields in a published config. All raise CheckpointError."""

    raw: Json
    config_keys: Mapping[str, str]
    where: str

    def __contains__(self, name: str) -> bool:
        return self.raw.get(self.config_keys[name]) is not None

    def _given(self, name: str, default: object) -> tuple[str, Any]:
        key = self.config_keys.get(name, name)
        return key, default if self.raw.get(key) is None else self.raw[key]

    def positive_int(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        key, value = self._given(name, default)
        return checked_int(value, key, name, self.where, minimum=minimum)

    def positive_float(self, name: str, default: float | None = None) -> float:
        key, value = self._given(name, default)
        # bool is an int to Python, but a true in place of a number is a mistake.
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 < value <= sys.float_info.max
        ):
            raise wrong_value(key, value, "a number above 0", self.where)
        return float(value)

    def boolean(self, name: str) -> bool:
        key, value = self._given(name, None)
        if not isinstance(value, bool):
            raise wrong_value(key, value, "true or false", self.where)
        return value


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
