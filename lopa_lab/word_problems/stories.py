"""The words, the sentences and the stories of `stories.toml`, which says what its placeholders stand for."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lopa_lab.word_problems.kind import FACTOR, NUMBER, ONE_DIGIT, Kind, Wordings

VERBS = (("sell", "sells", "sold"), ("find", "finds", "found"), ("buy", "buys", "bought"))
"""For `DO`, `DOES` and `DID`: what is asked is what was told."""


def _with_verbs(texts: Sequence[str]) -> Iterator[str]:
    """The texts, those with a placeholder for a verb with one after the other of `VERBS`."""
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

_COMPARED = (
    ("times", "t=a*b", {"a": FACTOR, "b": ONE_DIGIT}),
    ("twice", "t=a*2", {"a": NUMBER}),
    ("half", "t=a/2", {"a": NUMBER}),
    ("more", "t=a+b", {"a": NUMBER, "b": NUMBER}),
    ("fewer", "t=a-b", {"a": NUMBER, "b": NUMBER}),
)
_ASKED = (("friends", ""), ("together", " <So|Together> they <have|get> [u=a+t] {item}."))

STORIES = (
    *(
        Kind(
            (SENTENCES[sentence], SENTENCES[question]),
            f"<So|Now> {{friend}} <has|gets> [{step}] {{item}}.{last_step}",
            numbers,
            0.7,
        )
        for (sentence, step, numbers), (question, last_step) in itertools.product(_COMPARED, _ASKED)
    ),
    *(_kind(**story) for story in _FILE["stories"]),
)
"""Stories that compare two quantities and ask for one or both, and those that the file has in one piece."""
