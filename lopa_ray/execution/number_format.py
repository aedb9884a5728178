"""`number_format`: a model's numbers in words, for people who wait for its answers."""

from __future__ import annotations

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.execution.model_spec import resolve_dtype


def number_format(model: ModelSettings, num_actors: int) -> str:
    """As "float32 on cpu"; on a CPU also whether weights are packed for its products. Actors, if there are several,
    share their weights in bfloat16 as they are stored."""
    dtype = resolve_dtype(model)
    words = f"{dtype} on {model.device}"
    if model.pack_float32 and dtype == "float32":
        return f"{words}, packed weights"
    if (dtype, model.device, model.quantization) != ("bfloat16", "cpu", "none"):
        return words
    from lopa_ray.model.quantization.packed import multiplies_bfloat16

    if not multiplies_bfloat16():
        return f"{words}, weights not packed: this CPU has no such products"
    are_packed = num_actors == 1 and not model.batch_invariant and model.implementation != "transformers"
    return f"{words}, {'packed weights' if are_packed else 'weights not packed'}"
