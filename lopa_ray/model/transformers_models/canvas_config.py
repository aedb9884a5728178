"""From the config.json of a model that denoises canvases of random tokens (DiffusionGemma) to a `CanvasConfig`.

Text only: the vision tower of a checkpoint is neither read nor run.
"""

from __future__ import annotations

import json
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.size_limits import checked_int
from lopa_ray.model.checkpoint.special_tokens import NO_MASK, Json, SpecialTokens
from lopa_ray.model.transformers_models.model_config import CanvasConfig, LayerShape

_COMPUTED_VALUES: dict[str, tuple[object, ...]] = {
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": ("vision", None),
    "quantization_config": (None,),
}
"""Keys that ask for another computation, with the values that do not."""

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_position_embeddings",
    "num_experts": "experts.count",
}
"""Keys of the text model that say how large it is, and the fields here that limit them."""

SLIDING = "sliding_attention"

ROPE_TYPES = ("default", "proportional")


def parse_canvas_config(theirs: Any, family: str, raw: Json, generation: Json, where: str) -> CanvasConfig:
    """The model that `theirs` describes, the configuration object of transformers for config.json `raw`. Raises
    CheckpointError, naming `where` and the key, for a missing or wrong value and for a feature that is not computed
    here."""
    of_text = theirs.get_text_config()
    for config in (theirs, of_text):
        for key, values in _COMPUTED_VALUES.items():
            if getattr(config, key, values[0]) not in values:
                raise _unsupported(key, getattr(config, key), where)
    sizes = {
        key: checked_int(getattr(of_text, key, None), key, field, where) for key, field in _SIZES.items()
    }
    layers = _layers(of_text, where)
    widest = max(layers, key=lambda layer: (layer.kv_heads * layer.head_dim, -layer.head_dim))
    for layer in layers:
        if layer.head_dim % widest.head_dim:
            raise _unsupported("per_layer_config", f"heads of {layer.head_dim} and {widest.head_dim}", where)
    vocab = sizes["vocab_size"]
    tokens = SpecialTokens.read(raw, generation, NO_MASK, vocab, where)
    if tokens.mask != NO_MASK:
        raise _unsupported("mask_token_id", tokens.mask, where)
    return CanvasConfig(
        family=family,
        vocab_size=vocab,
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"],
        num_kv_heads=widest.kv_heads,
        head_dim=widest.head_dim,
        shifted=False,
        mask_token_id=NO_MASK,
        eos_token_id=tokens.eos,
        stop_token_ids=tokens.stops,
        canvas_length=checked_int(
            getattr(theirs, "canvas_length", None), "canvas_length", "canvas_length", where
        ),
        config_json=json.dumps(raw),
        layers=layers,
    )


def _layers(of_text: Any, where: str) -> tuple[LayerShape, ...]:
    window = checked_int(of_text.sliding_window, "sliding_window", "max_position_embeddings", where)
    layers = []
    for index, kind in enumerate(of_text.layer_types):
        if kind not in (SLIDING, "full_attention"):
            raise _unsupported("layer_types", kind, where)
        rope = of_text.rope_parameters[kind]["rope_type"]
        if rope not in ROPE_TYPES:
            raise _unsupported("rope_type", rope, where)
        of_layer = of_text.per_layer_config[index]
        layers.append(
            LayerShape(
                checked_int(of_layer.num_key_value_heads, "num_key_value_heads", "num_kv_heads", where),
                checked_int(of_layer.head_dim, "head_dim", "head_dim", where),
                window if kind == SLIDING else None,
            )
        )
    return tuple(layers)


def _unsupported(key: str, value: object, where: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: got {key} = {value!r}, which is not computed here for models that denoise canvases; use a "
        "checkpoint without that feature"
    )
