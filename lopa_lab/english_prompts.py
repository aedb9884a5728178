"""English prompts from templates and word lists, for a model that chats. Held-out prompts share no template and no word
with training prompts."""

from __future__ import annotations

import itertools
import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

HELD_OUT_SHARE = 8  # one word of so many

_FIELD = re.compile(r"\{(?:other_)?(\w+)\}")
_BEFORE_VOWEL = re.compile(r"(?<=\b[Aa])(?= [aeiou])")


def training_prompts(seed: int) -> Iterator[str]:
    """Prompts without end, each once, in an order that depends on `seed`."""
    words = _tables()["words"]
    known = {name: values[: -len(values) // HELD_OUT_SHARE] for name, values in words.items()}
    return _prompts(_tables()["templates"], known, seed)


def held_out_prompts(seed: int, count: int) -> list[str]:
    words = _tables()["words"]
    unseen = {name: values[-len(values) // HELD_OUT_SHARE :] for name, values in words.items()}
    return [*itertools.islice(_prompts(_tables()["held_out_templates"], unseen, seed), count)]


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def _prompts(templates: Sequence[str], words: dict[str, list[str]], seed: int) -> Iterator[str]:
    rng, seen = random.Random(seed), set()
    while True:
        template = rng.choice(templates)
        chosen: dict[str, str] = {}
        for field in _FIELD.finditer(template):
            left = [word for word in words[field[1]] if word not in chosen.values()]
            chosen[field[0][1:-1]] = rng.choice(left)
        prompt = _BEFORE_VOWEL.sub("n", template.format(**chosen))
        if prompt not in seen:
            seen.add(prompt)
            yield prompt
