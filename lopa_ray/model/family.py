"""Family: how a published `config.json` and its tensor names map to this project's own."""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config import QUANTIZATION_CONFIGS, NativeConfig
from lopa_ray.model.experts_config import ExpertsConfig, RouterKind
from lopa_ray.model.rope import flatten_rope
from lopa_ray.model.size_limits import LARGEST_EXPERTS, largest
from lopa_ray.model.special_tokens import TOKEN_ID_KEYS, Json, SpecialTokens
from lopa_ray.model.stored_quantization import read_quantization
from lopa_ray.model.yarn import KEY as YARN_KEY, split_yarn

_log = logging.getLogger("lopa.model")

_LAYER = re.compile(r"^layers\.(\d+)\.")

_MAY_BE_ZERO = ("shared", "dense_layers")


@dataclass(frozen=True, slots=True)
class Family:
    """One family of published checkpoints.

    `config_keys` maps a `NativeConfig` field to its published key. `config_defaults` holds what the published
    code assumes where the published key is absent or null. `supported_values` lists, for keys that change the
    result, the only values this project computes: any other value is refused, absence is not.
    `transformers_type` is the model type of transformers whose class computes the same, from a config.json with
    Qwen's keys. `extra_config` is what a saved `config.json` says besides. `published_modules` maps an own module
    (`{i}` is the layer) to the published modules whose rows it stacks, in that order; where these have an `{e}`, all of
    them for each expert in turn.
    `reads_yarn` says that rotary embeddings of the type yarn are computed, which are refused elsewhere.
    `router` is how rows are routed in layers with experts, None in a family of dense models; `expert_keys` maps fields
    of `ExpertsConfig` to their published keys. `eos_key` is the key that EOS has where there is no `eos_token_id`.
    `mask_token_id` is the mask token of the published code, where configurations do not name it.
    `ignored_tensors` matches published tensors that carry nothing to load. `checked_against` says
    what results were compared with, for people to read.
    """

    name: str
    model_type: str
    architecture: str
    config_keys: Mapping[str, str]
    supported_values: Mapping[str, tuple[object, ...]]
    published_modules: Mapping[str, tuple[str, ...]]
    transformers_type: str
    checked_against: str
    shifted: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    reads_yarn: bool = False
    router: RouterKind | None = None
    expert_keys: Mapping[str, str] = field(default_factory=dict)
    eos_key: str = "eos_token_id"
    mask_token_id: int | None = None
    config_defaults: Mapping[str, object] = field(default_factory=dict)
    extra_config: Mapping[str, object] = field(default_factory=dict)
    ignored_tensors: tuple[str, ...] = (r"(.*\.)?rotary_emb\.inv_freq",)

    def claims(self, raw: Json) -> bool:
        """Whether config.json `raw` is of this family."""
        return is_of_type(raw, self.model_type, self.architecture)

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
        """Whether a published tensor is a leftover buffer that the model recomputes."""
        return any(re.fullmatch(pattern, tensor) for pattern in self.ignored_tensors)

    def parse_config(self, raw: Json, generation: Json, where: str) -> NativeConfig:
        """Build a `NativeConfig` from config.json `raw`, special ids also from `generation`.

        Raises `CheckpointError`, naming `where` and the key, for a missing key, a bad value or a
        feature that this project does not compute.
        """
        note_assumed_type(raw, self.model_type, self.architecture, where)
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
                f"{where}: got hidden size {hidden}, {heads} heads, {kv_heads} KV heads, head dim "
                f"{head_dim}; heads must divide the hidden size, KV heads the heads, and the head dim must "
                "be even; correct the file"
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
        raw |= self.extra_config
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
    """Typed look-ups of `NativeConfig` fields in a published config."""

    raw: Json
    config_keys: Mapping[str, str]
    where: str

    def __contains__(self, name: str) -> bool:
        return self.raw.get(self.config_keys[name]) is not None

    def _get(
        self,
        name: str,
        types: tuple[type, ...],
        expected: str,
        default: object = None,
        *,
        above: float = 0,
        most: float = sys.float_info.max,
    ) -> Any:
        key = self.config_keys.get(name, name)
        value: Any = default if self.raw.get(key) is None else self.raw[key]
        # bool is an int to Python, but `"num_hidden_layers": true` is a mistake.
        valid = isinstance(value, types) and (isinstance(value, bool) == (types == (bool,)))
        if not valid or (types != (bool,) and not above < value <= most):
            got = f"{key} = {value!r}" if key in self.raw else f"no {key}"
            raise CheckpointError(f"{self.where}: got {got}; it must be {expected}; correct the file")
        return value

    def positive_int(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        most = largest(name)
        expected = f"an integer above {minimum - 1} and at most {most}"
        return int(self._get(name, (int,), expected, default, above=minimum - 1, most=most))

    def positive_float(self, name: str, default: float | None = None) -> float:
        return float(self._get(name, (int, float), "a number above 0", default))

    def boolean(self, name: str) -> bool:
        return bool(self._get(name, (bool,), "true or false"))


def is_of_type(raw: Json, model_type: str, architecture: str) -> bool:
    """Whether config.json `raw` says both.

    `model_type` and `architectures` must agree: a Dream body under another head has the same
    model type and would load, but mean something else. Either of the two may be absent (`note_assumed_type`).
    """
    named = raw.get("model_type"), raw.get("architectures")
    return any(named) and named[0] in (model_type, None) and named[1] in ([architecture], None)


def note_assumed_type(raw: Json, model_type: str, architecture: str, where: str) -> None:
    """Warn, once per file, what config.json `raw` is read as if it leaves out `model_type` or `architectures`."""
    absent = [key for key in ("model_type", "architectures") if not raw.get(key)]
    if absent:
        _warn_once(
            f"{where}: it names no {absent[0]}, and is read as model_type {model_type!r} with architectures "
            f"[{architecture!r}]; add {absent[0]} to the file if this is right"
        )


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


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
