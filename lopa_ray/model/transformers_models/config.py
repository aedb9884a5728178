"""Makes a `TransformersConfig` of a config.json, and of that the package's configuration.

transformers is imported where it is needed: native models run without it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config import ModelShape
from lopa_ray.model.config_json import stored_quantization
from lopa_ray.model.config_json.size_limits import checked_int
from lopa_ray.model.config_json.special_tokens import NO_MASK, Json, SpecialTokens
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.families.published_family import known_types
from lopa_ray.model.transformers_models.canvas_config import canvas_fields
from lopa_ray.model.transformers_models.families import (
    KNOWN_FAMILIES,
    TRANSFORMERS_FAMILIES,
    TransformersFamily,
    translate_native,
    unlisted_family,
)
from lopa_ray.model.transformers_models.model_config import (
    CanvasConfig,
    TransformersConfig,
    refuse_other_values,
    unsupported,
)
from lopa_ray.model.transformers_models.package import import_transformers

_log = logging.getLogger("lopa.transformers")

_COMPUTED_VALUES: Mapping[str, tuple[object, ...]] = {
    "attention_chunk_size": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "is_encoder_decoder": (False, None),
    "logit_scale": (1, None),
    "logits_scaling": (1, None),
}
"""Keys of transformers that ask for what is computed nowhere here (masks, changed scores, changed logits), each with
the values that do not. What keys do not tell is found by a trial (`trial.py`)."""

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_position_embeddings",
}
_HEAD_SIZES = {"num_key_value_heads": "num_kv_heads", "head_dim": "head_dim"}
_EXPERT_SIZES = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), "experts.count")
"""Transformers' names of the fields that say how large a model is."""

_CODE_KEYS = (
    "auto_map",
    "attn_implementation",
    "experts_implementation",
    "fusion_config",
    "transformers_weights",
)
"""Keys by which a checkpoint has transformers load code, kernels or files. They are left out, as private keys are."""

_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Frequencies depend on the largest position in a forward, of whatever request it is; K/V here outlive a forward."""


def parse_transformers_config(raw: Json, generation: Json, where: str) -> TransformersConfig:
    """The model that config.json `raw` describes, to be run by transformers; special ids also from `generation`. Raises
    `CheckpointError`, naming `where` and the key, if the installed transformers has no class for it, for a missing or
    wrong value, and for a feature that is not computed here."""
    for native in FAMILIES:
        if native.claims(raw):
            config = native.parse_config(raw, generation, where)
            if config.quantization != "none":
                stored = stored_quantization.describe(raw[stored_quantization.KEY])
                raise CheckpointError(
                    f"{where}: got {stored_quantization.KEY} {stored}, which is not read for models that transformers "
                    "runs; set model.implementation to auto or native, or use the unquantised (bfloat16) checkpoint"
                )
            shape = {field.name: getattr(config, field.name) for field in fields_of(ModelShape)}
            text = json.dumps(translate_native(config, native))
            return TransformersConfig(**shape, config_json=text, native=config)
    listed = (family for family in TRANSFORMERS_FAMILIES if family.claims(raw))
    family = next(listed, None) or _unlisted(raw, where)
    if raw.get(stored_quantization.KEY) is not None:
        raise stored_quantization.refusal(raw, where, native=False)
    family.note_assumed_type(raw, where)
    translated = {
        key: value
        for key, value in family.translate(raw).items()
        if key not in _CODE_KEYS and not key.startswith("_")
    }
    text = json.dumps(translated)
    try:
        theirs = make_pretrained_config(text)
    # What its checks raise differs from class to class.
    except Exception as error:
        raise CheckpointError(
            f"{where}: transformers cannot read it as {family.runs_as} ({error}); correct the file"
        ) from None
    if family.denoises_canvases:
        others = canvas_fields(theirs, where)
        fields = _fields_of_family(family, text, theirs.get_text_config(), generation, where)
        if fields["mask_token_id"] != NO_MASK:
            raise unsupported("mask_token_id", fields["mask_token_id"], where)
        return CanvasConfig(**fields | others)
    refuse_other_values(theirs, _COMPUTED_VALUES, where)
    _refuse_other_attention(theirs, where)
    return TransformersConfig(**_fields_of_family(family, text, theirs, generation, where))


def make_pretrained_config(text: str) -> Any:
    raw = json.loads(text)
    return import_transformers().CONFIG_MAPPING[raw["model_type"]].from_dict(raw)


def causal_lm_class(config_class: type) -> Any:
    """Raises KeyError if there is none."""
    return import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING[config_class]


def _unlisted(raw: Json, where: str) -> TransformersFamily:
    """The family of a model type that transformers has itself, under the name of its own class. Raises
    CheckpointError."""
    transformers = import_transformers()
    model_type, architectures = raw.get("model_type"), raw.get("architectures")
    try:
        architecture = causal_lm_class(transformers.CONFIG_MAPPING[str(model_type)]).__name__
    except KeyError:
        architecture = None
    if architecture is not None and architectures in (None, [], [architecture]):
        _log.info("%s: transformers runs it as %s; logits are not shifted", where, architecture)
        return unlisted_family(str(model_type), architecture)
    if encoders := [name for name in architectures or () if str(name).endswith("ForMaskedLM")]:
        raise CheckpointError(
            f"{where}: {encoders[0]} is an encoder that fills single masks, not a diffusion language model; use a "
            "checkpoint that lopa models lists"
        )
    has = f"has no causal language model of model_type {model_type!r}"
    if architecture is not None:
        has = f"runs model_type {model_type!r} as [{architecture!r}]"
    raise CheckpointError(
        f"{where}: got model_type = {model_type!r} with architectures = {architectures!r}; supported are "
        f"{known_types(KNOWN_FAMILIES)}, and causal language models of transformers, but version "
        f"{transformers.__version__} {has}; use a checkpoint of a supported family, describe its family in "
        "lopa_ray/model/transformers_models/families.py, or install a transformers that has it"
    )


def _refuse_other_attention(theirs: Any, where: str) -> None:
    layer_types = getattr(theirs, "layer_types", None)
    if layer_types is None:
        window = getattr(theirs, "sliding_window", None)
        if window is not None:
            raise unsupported("sliding_window", window, where)
    elif set(layer_types) != {"full_attention"}:
        raise unsupported("layer_types", sorted(set(layer_types)), where)
    rope = getattr(theirs, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") in _BATCH_DEPENDENT_ROPE:
            raise unsupported("rope_type", parameters["rope_type"], where)
    if theirs.get_text_config() is not theirs:
        raise unsupported("text_config", "a text model within another one", where)


def _fields_of_family(
    family: TransformersFamily, text: str, theirs: Any, generation: Json, where: str
) -> dict[str, Any]:
    """The fields that all models have, of `text`, a config.json, and `theirs`, its configuration object."""
    # Layers of models that denoise canvases differ in their heads.
    optional = _EXPERT_SIZES if family.denoises_canvases else _EXPERT_SIZES | _HEAD_SIZES
    sizes = {
        field: checked_int(getattr(theirs, key, None), key, field, where)
        for key, field in (_SIZES | optional).items()
        if key in _SIZES or getattr(theirs, key, None) is not None
    }
    heads, hidden, vocab = sizes["num_heads"], sizes["hidden_size"], sizes["vocab_size"]
    tokens = SpecialTokens.read(json.loads(text), generation, family.mask_token_id, vocab, where)
    return {
        "family": family.name,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_layers": sizes["num_layers"],
        "num_heads": heads,
        "num_kv_heads": sizes.get("num_kv_heads", heads),
        "head_dim": sizes.get("head_dim", hidden // heads),
        "shifted": family.shifted,
        "mask_token_id": tokens.mask,
        "eos_token_id": tokens.eos,
        "stop_token_ids": tokens.stops,
        "config_json": text,
    }
