"""`number_format`: a model's numbers in words, for people who wait for its answers."""

from __future__ import annotations

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.execution.model_spec import resolve_dtype


def number_format(model: ModelSettings, num_actors: int) -> str:
    """As "float32 on cpu"; on a CPU also whether weights are packed for its products. Actors, if there are several,
    share their weights in bfloat16 as they are stored."""
    dtype = resolve_dtype(model)
    words = f"{dtype} on {model.device}"
    if (model.device, model.quantization) != ("cpu", "none"):
        return words
    is_plain = not model.batch_invariant and model.implementation != "transformers"
    if dtype == "float32":
        return f"{words}, packed weights" if model.pack_float32 and is_plain else words
    if dtype != "bfloat16":
        return words
    from lopa_ray.model.quantization.packed import multiplies_bfloat16

    if not multiplies_bfloat16():
        return f"{words}, weights not packed: this CPU has no such products"
    return f"{words}, {'packed weights' if is_plain and num_actors == 1 else 'weights not packed'}"
