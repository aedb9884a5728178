"""The fields of a `CanvasConfig`, from the configuration of a model that denoises canvases (DiffusionGemma).

Text only: the vision tower of a checkpoint is neither read nor run.
"""

from __future__ import annotations

from typing import Any

from lopa_ray.model.config_json.size_limits import checked_int
from lopa_ray.model.transformers_models.model_config import LayerShape, refuse_other_values, unsupported

_COMPUTED_VALUES: dict[str, tuple[object, ...]] = {
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": ("vision", None),
    "quantization_config": (None,),
}
"""Keys that ask for another computation, with the values that do not."""

SLIDING = "sliding_attention"

ROPE_TYPES = ("default", "proportional")


def canvas_fields(theirs: Any, where: str) -> dict[str, Any]:
    """The fields of a `CanvasConfig` that not every model has, from `theirs`, the configuration object of transformers.
    Raises CheckpointError, naming `where` and the key, for a missing or wrong value and for a feature that is not
    computed here."""
    of_text = theirs.get_text_config()
    for config in (theirs, of_text):
        refuse_other_values(config, _COMPUTED_VALUES, where)
    layers = _layers(of_text, where)
    widest = max(layers, key=lambda layer: (layer.kv_heads * layer.head_dim, -layer.head_dim))
    for layer in layers:
        if layer.head_dim % widest.head_dim:
            raise unsupported("per_layer_config", f"heads of {layer.head_dim} and {widest.head_dim}", where)
    length = getattr(theirs, "canvas_length", None)
    return {
        "num_kv_heads": widest.kv_heads,
        "head_dim": widest.head_dim,
        "canvas_length": checked_int(length, "canvas_length", "canvas_length", where),
        "layers": layers,
    }


def _layers(of_text: Any, where: str) -> tuple[LayerShape, ...]:
    window = checked_int(of_text.sliding_window, "sliding_window", "max_position_embeddings", where)
    layers = []
    for index, kind in enumerate(of_text.layer_types):
        if kind not in (SLIDING, "full_attention"):
            raise unsupported("layer_types", kind, where)
        rope = of_text.rope_parameters[kind]["rope_type"]
        if rope not in ROPE_TYPES:
            raise unsupported("rope_type", rope, where)
        of_layer = of_text.per_layer_config[index]
        layers.append(
            LayerShape(
                checked_int(of_layer.num_key_value_heads, "num_key_value_heads", "num_kv_heads", where),
                checked_int(of_layer.head_dim, "head_dim", "head_dim", where),
                window if kind == SLIDING else None,
            )
        )
    return tuple(layers)
