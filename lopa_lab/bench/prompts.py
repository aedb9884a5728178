"""Prompts of random tokens."""

from __future__ import annotations

import random

from lopa_ray.protocol.vocabulary import Vocabulary


def random_prompt(draw: random.Random, vocabulary: Vocabulary, length: int) -> list[int]:
    """So many ids, none of which is the mask token."""
    choices = vocabulary.size - 1
    ids = (draw.randrange(choices) for _ in range(length))
    return [token + (token >= vocabulary.mask_token_id) for token in ids]
