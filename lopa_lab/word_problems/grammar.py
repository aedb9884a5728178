"""Wordings by chance: what the rules, verbs and words of `grammar.toml` make of a text."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa_lab.word_problems.stories import WORDS

_FOLDER = Path(__file__).parent
GRAMMAR: dict[str, Any] = tomllib.loads((_FOLDER / "grammar.toml").read_text(encoding="utf-8"))
"""Rules, verbs and stories."""
MORE_WORDS: dict[str, Any] = tomllib.loads((_FOLDER / "grammar_words.toml").read_text(encoding="utf-8"))
"""Lists of words by what they name, in addition to `stories.WORDS`."""

RULES: dict[str, list[str]] = GRAMMAR["rules"]
VERBS: dict[str, tuple[str, str]] = GRAMMAR["verbs"]
BE = {"1": ("am", "was"), "3": ("is", "was"), "p": ("are", "were")}
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMBER_WORDS_SHARE = 0.12
"""The share of numbers below 100 that are told as words."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person in a story: words for every case, and the grammatical person of verbs."""

    subject: str
    object: str
    he: str
    him: str
    his: str
    possessive: str
    person: str
    """`1` for I, `p` for we, `3` else."""

    @property
    def in_answer(self) -> str:
        """Their name in an answer: `you` for `I` and `we`, `your aunt` for `my aunt`."""
        return "you" if self.person != "3" else re.sub(r"^my ", "your ", self.subject)


I = Person("I", "me", "I", "me", "my", "my", "1")  # noqa: E741  # the word itself
WE = Person("we", "us", "we", "us", "our", "our", "p")


def draw_person(rng: random.Random, taken: Sequence[Person] = (), first_person: bool = True) -> Person:
    """A person with a name that is not `taken`; without `first_person` neither `I` nor `we`."""
    chance = rng.random()
    if first_person and chance < 0.16:
        return I if chance < 0.12 else WE
    pronoun = rng.choice(("he", "she"))
    him, his = {"he": ("him", "his"), "she": ("her", "her")}[pronoun]
    kind = rng.random()
    if kind < 0.08:
        subject = "".join(rng.choices(WORDS["syllables"], k=2)).capitalize()
    elif kind < 0.2:
        subject = "my " + rng.choice(MORE_WORDS["relatives_" + pronoun])
    elif kind < 0.3 and first_person:
        subject = "the " + rng.choice(MORE_WORDS["jobs_" + pronoun])
    elif kind < 0.35:
        subject = ("Mr. " if pronoun == "he" else "Mrs. ") + rng.choice(MORE_WORDS["surnames"])
    else:
        subject = rng.choice(WORDS["names"][pronoun] + MORE_WORDS["names_" + pronoun])
    if any(subject == person.subject for person in taken):
        return draw_person(rng, taken, first_person)
    return Person(subject, subject, pronoun, him, his, subject + "'s", "3")


def singular(plural: str) -> str:
    """The singular of a word of the lists."""
    known = MORE_WORDS["singular"].get(plural) or WORDS["singular"].get(plural)
    return str(known) if known else plural.removesuffix("s")


def draw_words(rng: random.Random) -> tuple[dict[str, str], Person]:
    """A word for every placeholder of `grammar.toml`, and the subject."""
    s = draw_person(rng)
    f = draw_person(rng, [s], first_person=False)
    g = draw_person(rng, [s, f], first_person=False)
    item, item2 = rng.sample(WORDS["items"] if rng.random() < 0.4 else MORE_WORDS["items"], 2)
    if rng.random() < 0.05:
        item = "".join(rng.choices(WORDS["syllables"], k=2)) + "s"
    box, box2 = rng.sample(MORE_WORDS["boxes"], 2)
    day, day2 = rng.sample(MORE_WORDS["days"], 2)
    color, color2 = rng.sample(MORE_WORDS["colors"], 2)
    unit = rng.choice(MORE_WORDS["units"])
    adjective = rng.choice(MORE_WORDS["adjectives"]) + " " if rng.random() < 0.15 else ""
    return {
        "s": s.subject, "s1": s.object, "he": s.he, "him": s.him, "his": s.his, "poss2": s.possessive,
        "y": s.in_answer, "yhe": "you" if s.person != "3" else s.he, "f": f.subject, "g": g.subject,
        "item": item, "items": adjective + item, "one": singular(item), "item2": item2, "one2": singular(item2),
        "box": box, "abox": singular(box), "box2": box2, "abox2": singular(box2), "day": day, "day2": day2,
        "color": color, "color2": color2, "unit": unit, "units": unit + "s",
        "aunit": ("an " if unit[0] in "aeh" else "a ") + unit,
        "month": rng.choice(MORE_WORDS["months"]), "place": rng.choice(MORE_WORDS["places"]),
        "venue": rng.choice(MORE_WORDS["venues"]), "beings": rng.choice(MORE_WORDS["beings"]),
        "measure": rng.choice(MORE_WORDS["measures"]),
    }, s  # fmt: skip


def expand(rng: random.Random, text: str, person: str, past: bool) -> str:
    """A text whose rules, alternatives and verbs are chosen; words and numbers still have their placeholders."""
    while "@" in text:
        text = re.sub(r"@([a-z_]+)", lambda match: rng.choice(RULES[match[1]]), text)
    while "<" in text:
        text = re.sub(r"<([^<>]*)>", lambda match: rng.choice(match[1].split("|")), text)
    return re.sub(
        r"\[([a-z]+)((?: [a-z]+)*)(?:\.([3p]))?(!?)\]",
        lambda match: conjugate(match[1], match[3] or person, past and not match[4]) + match[2],
        text,
    )


def conjugate(verb: str, person: str, past: bool) -> str:
    """A verb's form."""
    if verb == "be":
        return BE[person][past]
    if past:
        return VERBS[verb][1]
    return VERBS[verb][0] if person == "3" else verb


def number_in_words(number: int) -> str:
    """A number below 100."""
    tens, ones = divmod(number, 10)
    if number < 20:
        return ONES[number]
    return TENS[tens] + (f"-{ONES[ones]}" if ones else "")


def tell_numbers(rng: random.Random, text: str, numbers: Mapping[str, int]) -> str:
    """The text with its numbers, some of them as words: `#a` is number `a`."""

    def tell(match: re.Match[str]) -> str:
        dollar, letter, times = match.groups()
        number = numbers[letter]
        if times and number == 2 and rng.random() < 0.8:
            return "twice"
        if times and number == 3 and rng.random() < 0.4:
            return "three times"
        if not dollar and number < 100 and rng.random() < NUMBER_WORDS_SHARE:
            return number_in_words(number) + (times or "")
        return f"{dollar}{number}{times or ''}"

    return re.sub(r"(\$?)#([a-z])\b( times)?", tell, text)


def capitalise(text: str) -> str:
    """Sentences that begin with a capital letter, and one blank between words."""
    text = re.sub(r" +", " ", text).replace(" .", ".").replace(" ,", ",").replace(" ?", "?").strip()
    return re.sub(r"(^|[.?!] )([a-z])", lambda match: match[1] + match[2].upper(), text)
