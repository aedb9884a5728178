"""Problems from a seed: for training, with other numbers, and in other words.

The hash of a question says on which side it lies, whatever the seed, so training and held-out problems never
overlap. A question in held-out words has at least one sentence whose wording no training problem has.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence

from lopa_lab.word_problems.calculation import draw_number, solve
from lopa_lab.word_problems.one_quantity import STORIES_OF_ONE
from lopa_lab.word_problems.problem import Problem
from lopa_lab.word_problems.stories import DISTRACTIONS, NUMBER, STORIES, WORDS, Kind

KINDS = STORIES_OF_ONE + STORIES
HELD_OUT_SHARE = 32
"""One question in this many is held out."""
DISTRACTED_SHARE = 0.2
"""The share of problems that have a sentence that does not matter."""
LARGE, LARGE_REJECTED = 200, 0.6
"""A problem with a result from `LARGE` on is drawn again with this probability: everyday numbers are small."""
UNKNOWN_SHARE = 0.08
"""The share of names, and of things, that are made up."""
LONGEST_ANSWER = 60
"""Pieces, so that answers fit into 64 tokens with an end."""
PRONOUNS = {"he": ("he", "him", "his"), "she": ("she", "her", "her")}
COMMON_WORDS = {
    *(word for names in WORDS["names"].values() for word in names), *WORDS["items"], *WORDS["boxes"],
    *(word for kind in KINDS for word in re.findall(r"[A-Za-z]+", re.sub(r"{\w+}", "", kind.answer))),
    *(word for pronouns in PRONOUNS.values() for word in pronouns),
}  # fmt: skip
WEIGHTS = list(itertools.accumulate(kind.weight for kind in KINDS))


def make_problem(rng: random.Random, held_out_words: bool = False) -> Problem:
    """One problem of a random kind; in held-out words, one of its sentences has a held-out wording."""
    while True:
        kind = rng.choices(KINDS, cum_weights=WEIGHTS)[0]
        problem = tell(rng, kind, held_out_words)
        if problem is not None and count_pieces(problem.answer) <= LONGEST_ANSWER:
            return problem


def count_pieces(answer: str) -> int:
    """At least as many as a tokenizer makes of an answer: words, digits, signs, and what stands before a digit."""
    pieces = re.findall(r"[A-Za-z]+|\d| (?=\d)|[^\w\s]|\n", answer)
    return sum(3 if piece.isalpha() and piece not in COMMON_WORDS else 1 for piece in pieces)


def tell(rng: random.Random, kind: Kind, held_out_words: bool) -> Problem | None:
    """A problem of this kind; None if it has no held-out wording."""
    solved = None
    while solved is None:
        numbers = {letter: draw_number(rng, span) for letter, span in kind.numbers.items()}
        solved = solve(kind.answer, numbers)
        if solved is not None and solved[2] >= LARGE and rng.random() < LARGE_REJECTED:
            solved = None
    candidates = [index for index, sentence in enumerate(kind.story) if sentence.held_out]
    if held_out_words and not candidates:
        return None
    held_out = rng.choice(candidates) if held_out_words else -1
    texts = [
        rng.choice(sentence.held_out if index == held_out else sentence.trained)
        for index, sentence in enumerate(kind.story)
    ]
    if kind.distracted and rng.random() < DISTRACTED_SHARE:
        texts.insert(rng.randrange(len(texts)), rng.choice(DISTRACTIONS))
    words = draw_words(rng) | {"z": str(draw_number(rng, NUMBER))}
    text, result, _ = solved
    answer = choose(rng, text).format(**words)
    question = choose(rng, " ".join(texts)).format(**words, **numbers)
    return Problem(question, f"{answer}\n#### {result}", str(result))


def choose(rng: random.Random, text: str) -> str:
    """The text with one word of each `<has|gets>`."""
    return re.sub(r"<([^>]*)>", lambda match: rng.choice(match[1].split("|")), text)


def draw_words(rng: random.Random) -> dict[str, str]:
    """Words for the placeholders of `stories.toml`."""
    pronoun = rng.choice(("he", "she"))
    name = draw_name(rng, WORDS["names"][pronoun])
    friend, uncle, other = rng.sample(
        [known for names in WORDS["names"].values() for known in names if known != name], 3
    )
    item, item2, item3 = rng.sample(WORDS["items"], 3)
    if rng.random() < UNKNOWN_SHARE:
        item = "".join(rng.choices(WORDS["syllables"], k=2)) + "s"
    box, box2 = rng.sample(WORDS["boxes"], 2)
    day, day2 = rng.sample(WORDS["days"], 2)
    month, month2 = rng.sample(WORDS["months"], 2)
    color, color2 = rng.sample(WORDS["colors"], 2)
    unit = rng.choice(tuple(WORDS["units"]))
    he, him, his = PRONOUNS[pronoun]
    return {
        "name": name, "friend": friend, "uncle": uncle, "other": other,
        "he": he, "He": he.capitalize(), "him": him, "his": his,
        "item": item, "item2": item2, "item3": item3, "one": singular(item),
        "box": box, "abox": singular(box), "box2": box2, "abox2": singular(box2),
        "day": day, "day2": day2, "month": month, "month2": month2,
        "unit": unit, "units": unit + "s", "aunit": WORDS["units"][unit], "color": color, "color2": color2,
        "place": rng.choice(WORDS["places"]),
    }  # fmt: skip


def draw_name(rng: random.Random, names: Sequence[str]) -> str:
    """One of these names, or a name that no list has."""
    if rng.random() < UNKNOWN_SHARE:
        return "".join(rng.choices(WORDS["syllables"], k=2)).capitalize()
    return rng.choice(names)


def singular(plural: str) -> str:
    """The singular of a word of the lists."""
    return str(WORDS["singular"].get(plural, plural.removesuffix("s")))


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the held-out side."""
    return hashlib.sha256(question.encode()).digest()[0] % HELD_OUT_SHARE == 0


MakeProblem = Callable[[random.Random], Problem]


def training_problems(
    seed: int, drills: tuple[float, MakeProblem] = (0.0, make_problem)
) -> Iterator[Problem]:
    """Training problems without end. `drills`: the share of drills, and what makes them; none are held out."""
    rng, (drill_share, make_drill) = random.Random(f"train {seed}"), drills
    while True:
        problem = make_drill(rng) if rng.random() < drill_share else make_problem(rng)
        if not is_held_out(problem.question):
            yield problem


def held_out_stream(seed: int, held_out_words: bool = False) -> Iterator[Problem]:
    """Different problems that no training stream contains, without end; on request in words that none has."""
    rng = random.Random(f"held out {seed} words" if held_out_words else f"held out {seed}")
    questions: set[str] = set()
    while True:
        problem = make_problem(rng, held_out_words)
        if is_held_out(problem.question) and problem.question not in questions:
            questions.add(problem.question)
            yield problem


def held_out_problems(seed: int, count: int, held_out_words: bool = False) -> list[Problem]:
    """The first `count` problems of `held_out_stream`."""
    return list(itertools.islice(held_out_stream(seed, held_out_words), count))
