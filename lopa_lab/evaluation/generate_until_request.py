"""A `generate_until` request of lm-evaluation-harness, as this project's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import override_settings

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the answer's length in the harness; the first one that is given counts."""


def parse_generation(
    generation: Mapping[str, Any], default: GenerationSettings, repeat: int
) -> tuple[GenerationSettings, tuple[str, ...]]:
    """The settings of an answer, and the strings before the first of which it ends.

    From a task's generation settings; what they leave out is as in `default`. Without `do_sample` decoding is greedy
    unless a temperature is given, as in the harness. `repeat` counts the times that the same request came before: each
    has a seed of its own. Keys that the harness does not define are decode settings (`num_branches`). Raises
    SettingsError.
    """
    values = dict(generation)
    until = values.pop("until", None) or ()
    lengths = [values.pop(name, None) for name in LENGTHS]
    length = next((length for length in lengths if length is not None), None)
    do_sample, temperature = values.pop("do_sample", None), values.pop("temperature", None)
    if do_sample is False:
        temperature = 0.0
    elif temperature is None and do_sample:
        temperature = 1.0
    if temperature is not None:
        values["temperature"] = float(temperature)
    if length is not None:
        values["max_new_tokens"] = int(length)
    settings = override_settings(default, values)
    if repeat and settings.temperature:
        settings = settings.replace(seed=settings.seed + repeat)
    return settings, (until,) if isinstance(until, str) else tuple(until)
