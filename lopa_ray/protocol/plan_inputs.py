"""PlanInputs: how the rows of a step take in their tokens, where that is not by plain embeddings alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SoftInputs:
    """Mixtures of the embeddings of a token and of the mask token (see `embed_softly`)."""

    weights: tuple[float, ...]
    """The weight of the token's embedding, from 0 to 1, at each position of `Plan.canvas`; 1: the plain embedding."""


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """Rows of the encoder of a model that denoises canvases: a row sees no later position."""


@dataclass(frozen=True, slots=True)
class ConditionedInputs:
    """A canvas that the logits of an earlier step condition (self-conditioning)."""

    step: int  # the earlier step, whose commit has brought the logits' signals to the slot


PlanInputs: TypeAlias = SoftInputs | EncoderInputs | ConditionedInputs | None  # None: plain embeddings
