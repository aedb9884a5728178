"""The words, the sentences and the stories of `stories.toml`, which says what its placeholders stand for.

A kind of problem: which sentences tell a story, and how it is solved.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ONE_DIGIT, FACTOR, NUMBER = "one digit", "factor", "number"
"""Ranges of numbers: 2 to 9, 2 to 99 but mostly small, and one to three digits."""


@dataclass(frozen=True, slots=True)
class Wordings:
    """The wordings of one sentence."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """Sentences of a story and the steps of its answer.

    `[t=a*b]` in the answer stands for the calculation written out, and names its result. `<has|gets>` is one of
    these words, by chance: where nothing tells them apart a decoder has to choose, as in any text.
    """

    story: tuple[Wordings, ...]
    answer: str
    numbers: dict[str, str]
    """Letter, `a` to `g` → its range."""
    weight: float = 1.0
    """The weight with which it is drawn, next to others."""
    distracted: bool = True
    """Whether a sentence that does not matter may stand in its story; not where everything in it counts."""


VERBS = (("sell", "sells", "sold"), ("find", "finds", "found"), ("buy", "buys", "bought"))
"""Verbs for `DO`, `DOES` and `DID`: what is asked is what was told."""


def _with_verbs(texts: Sequence[str]) -> Iterator[str]:
    """The texts; a placeholder for a verb stands for one after the other of `VERBS`."""
    for text in texts:
        if "DO" not in text and "DID" not in text:
            yield text
            continue
        for do, does, did in VERBS:
            yield text.replace("DOES", does).replace("DID", did).replace("DO", do)


def _wordings(trained: Sequence[str], held_out: Sequence[str] = ()) -> Wordings:
    return Wordings(tuple(_with_verbs(trained)), tuple(held_out))


def _kind(story: Sequence[Mapping[str, Any]], **values: Any) -> Kind:
    sentences = (SENTENCES[part["sentence"]] if "sentence" in part else _wordings(**part) for part in story)
    return Kind(tuple(sentences), **values)


_FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("stories.toml").read_text(encoding="utf-8"))

WORDS: dict[str, Any] = _FILE["words"]
"""Lists of words by what they name; `names` by pronoun; `singular` and `units` from a word to another form of it."""
DISTRACTIONS = tuple(_FILE["distractions"])
SENTENCES = {name: _wordings(**sentence) for name, sentence in _FILE["sentences"].items()}

STORIES = (
    *(
        Kind(
            (SENTENCES[sentence], SENTENCES[question]),
            f"<So|Now> {{friend}} <has|gets> [{step}] {{item}}.{last_step}",
            numbers,
            0.7,
        )
        for (sentence, (step, numbers)), (question, last_step) in itertools.product(
            *(_FILE["two_quantities"][part].items() for part in ("compared", "asked"))
        )
    ),
    *(_kind(**story) for story in _FILE["stories"]),
)
"""Stories that compare two quantities and ask for one or both, and stories that the file has in one piece."""
ONE_QUANTITY: dict[str, Any] = _FILE["one_quantity"]
"""The parts of stories of one quantity (`one_quantity.py`)."""
