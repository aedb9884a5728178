"""A `generate_until` request of lm-evaluation-harness, as this project's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lopa_lab.stop_strings import cut_at_stop
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import override_settings

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the answer's length in the harness; the first one that is given counts."""


@dataclass(frozen=True, slots=True)
class GenerateUntilRequest:
    """A task's settings for each of its answers."""

    settings: GenerationSettings
    stop: tuple[str, ...]
    """The answer ends before the first of these."""

    @staticmethod
    def parse(
        generation: Mapping[str, Any], default: GenerationSettings, repeat: int
    ) -> GenerateUntilRequest:
        """From a task's generation settings; what they leave out is as in `default`.

        Without `do_sample` decoding is greedy unless a temperature is given, as in the harness. `repeat` counts the
        times that the same request came before: each has a seed of its own. Keys that the harness does not define are
        decode settings (`num_branches`). Raises SettingsError.
        """
        values = dict(generation)
        until = values.pop("until", None) or ()
        lengths = [values.pop(name, None) for name in LENGTHS]
        length = next((length for length in lengths if length is not None), None)
        do_sample = values.pop("do_sample", None)
        temperature = values.pop("temperature", None)
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
        return GenerateUntilRequest(settings, (until,) if isinstance(until, str) else tuple(until))

    def cut(self, text: str) -> str:
        """An answer without the first stop string and what follows it."""
        return cut_at_stop(text, self.stop)


def first_repeats(keys: Sequence[object]) -> list[int]:
    """Per key how often it stood before."""
    seen: dict[object, int] = {}
    repeats = []
    for key in keys:
        repeats.append(seen.get(key, 0))
        seen[key] = repeats[-1] + 1
    return repeats
