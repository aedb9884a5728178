"""Decisions about told quantities: an input that tells some, and a typed question about them with its right answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from lopa_lab.word_problems.calculation import draw_number
from lopa_lab.word_problems.generator import is_held_out
from lopa_lab.word_problems.grammar import (
    MORE_WORDS,
    Person,
    capitalise,
    draw_person,
    draw_words,
    expand,
    singular,
)
from lopa_lab.word_problems.held_out_words import has_held_out_words
from lopa_lab.word_problems.stories import NUMBER, WORDS
from lopa_lab.word_problems.told_stories import fill
from lopa_ray.text.decision_prompt import (
    DecisionQuestion,
    choice_question,
    level_question,
    predicate_question,
)

LEVELS = (
    (("fewer than 10", "10 to 99", "100 or more"), (10, 100)),
    (("less than 10", "10 to 49", "50 to 99", "100 or more"), (10, 50, 100)),
    (("under 20", "20 or more"), (20,)),
    (("0 to 4", "5 to 9", "10 to 19", "20 to 49", "50 and above"), (5, 10, 20, 50)),
    (("small, below 30", "middle, 30 to 59", "large, 60 or above"), (30, 60)),
    ((*(f"{tens} to {tens + 9}" for tens in range(0, 100, 10)), "100 or more"), tuple(range(10, 101, 10))),
    (("at most 9", "10 to 19", "20 to 29", "30 to 39", "40 to 49", "at least 50"), (10, 20, 30, 40, 50)),
)
"""Labels of a question's levels, and the smallest number of each level but the first."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A question about an input, and which one of its labels is right."""

    input: str
    question: DecisionQuestion
    kind: str
    """predicate, choice or level."""
    right: int
    """Index of the right label."""


@dataclass(frozen=True, slots=True)
class Quantities:
    """A text, what it counts, and how questions name each of its quantities."""

    text: str
    owners: tuple[str, ...]
    numbers: tuple[int, ...]
    how_many: str
    """A question for the number of `{}`."""
    more: str
    """A statement that `{}` is more than `{}`, as a question; the same for less has `fewer`."""
    most: str
    """A question for the quantity with the most."""
    than: str
    """A question whether the number of `{}` is {} (`more than`) the number {}."""


def draw_quantities(rng: random.Random) -> Quantities:
    """Two to four different numbers of people's things, of one person's things, of prices, or of ages."""
    words, _ = draw_words(rng)
    count = rng.choice((2, 2, 3, 3, 4))
    numbers = draw_numbers(rng, count)
    people: list[Person] = []
    while len(people) < count:
        people.append(draw_person(rng, people, first_person=False))
    names = tuple(person.subject for person in people)
    items = tuple(rng.sample(WORDS["items"] + MORE_WORDS["items"][:120], count))
    if len(set(items)) < count:
        return draw_quantities(rng)
    item, kind = words["item"], rng.random()
    if kind < 0.4:
        told = [f"{name} <has|has got|owns> {n} {item}" for name, n in zip(names, numbers, strict=True)]
        return Quantities(
            sentences(rng, told), names, numbers, f"How many {item} does {{}} have?",
            f"Does {{}} have {{}} {item} than {{}}?", f"Who has the {{}} {item}?", f"Does {{}} have {{}} {{}} {item}?",
        )  # fmt: skip
    if kind < 0.7:
        told = [", ".join(f"{n} {thing}" for thing, n in zip(items, numbers, strict=True))]
        head, _, tail = told[0].rpartition(", ")
        told = [
            expand(
                rng,
                f"<{names[0]} has|There are|In the {words['venue']} there are|I see> {head} and {tail}",
                "3",
                False,
            )
        ]
        return Quantities(
            sentences(rng, told), items, numbers, "How many {} are there?", "Are there {} {} than {}?",
            "Which are there the {} of?", "Is the number of {} {} {}?",
        )  # fmt: skip
    if kind < 0.85:
        ones = tuple("the " + singular(thing) for thing in items)
        told = [f"{one} <costs|is> ${n}" for one, n in zip(ones, numbers, strict=True)]
        return Quantities(
            sentences(rng, told), ones, numbers, "How many dollars does {} cost?", "Does {} cost {} than {}?",
            "Which one costs the {}?", "Does {} cost {} {} dollars?",
        )  # fmt: skip
    told = [f"{name} is {n}< years old|>" for name, n in zip(names, numbers, strict=True)]
    return Quantities(
        sentences(rng, told), names, numbers, "How old is {}?", "Is {} {} than {}?", "Who is the {}?",
        "Is {} {} {} years old?",
    )  # fmt: skip


def draw_numbers(rng: random.Random, count: int) -> tuple[int, ...]:
    """Different numbers from 2 to 999, some of them near each other."""
    numbers: list[int] = []
    while len(numbers) < count:
        near = numbers and rng.random() < 0.3
        number = numbers[-1] + rng.randint(-12, 12) if near else draw_number(rng, NUMBER)
        if 2 <= number <= 999 and number not in numbers:
            numbers.append(number)
    return tuple(numbers)


def sentences(rng: random.Random, told: list[str]) -> str:
    """A text of these statements."""
    text = rng.choice((". ", ". ", ", and ", "; ")).join(told) + "."
    return capitalise(expand(rng, text, "3", past=False))


def make_decision(rng: random.Random) -> Decision:
    """A predicate, a choice or a level question; each answer of a kind is right about as often as the others."""
    told = draw_quantities(rng)
    text = told.text
    if rng.random() < 0.3:
        words, subject = draw_words(rng)
        aside = fill(
            expand(
                rng, "<the weather is good|it is {day}|{g} lives near the {place}>", subject.person, False
            ),
            words,
        )
        text = rng.choice((f"{text} {capitalise(aside)}.", f"{capitalise(aside)}. {text}"))
    index = rng.randrange(len(told.owners))
    owner, number, kind = told.owners[index], told.numbers[index], rng.random()
    if kind < 0.4:
        return Decision(text, *make_predicate(rng, told, index))
    if kind < 0.7:
        return Decision(text, *make_choice(rng, told, index))
    names, bounds = rng.choice(LEVELS)
    question = level_question(told.how_many.format(owner), names)
    return Decision(text, question, "level", sum(number >= bound for bound in bounds))


def compared(told: Quantities, more: bool) -> str:
    """`more` or `fewer`, as the question says it."""
    if told.most == "Who is the {}?":
        return "older" if more else "younger"
    return "more" if more else "less" if "cost" in told.most else "fewer"


def make_predicate(rng: random.Random, told: Quantities, index: int) -> tuple[DecisionQuestion, str, int]:
    """Whether a number is more or fewer than another's, or than one that the question tells."""
    owner, number, chance, more = told.owners[index], told.numbers[index], rng.random(), rng.random() < 0.5
    if chance < 0.4:
        other = rng.choice([i for i in range(len(told.owners)) if i != index])
        names = (owner, compared(told, more), told.owners[other])
        if told.more.startswith("Are there"):
            names = (names[1], names[0], names[2])
        right = (number > told.numbers[other]) is more
        return predicate_question(told.more.format(*names)), "predicate", 0 if right else 1
    if chance < 0.6:
        asked = number if rng.random() < 0.5 else rng.choice([n for n in told.numbers if n != number])
        text = told.than.format(owner, "exactly", asked)
        return predicate_question(text), "predicate", 0 if asked == number else 1
    asked = max(1, number + rng.choice((-1, 1)) * rng.choice((1, 2, 5, 10, rng.randint(1, 60))))
    words = "more than" if more else "less than" if "cost" in told.than else "fewer than"
    if told.most == "Who is the {}?":
        words = "more than" if more else "less than"
    return (
        predicate_question(told.than.format(owner, words, asked)),
        "predicate",
        0 if (number > asked) is more and number != asked else 1,
    )


def make_choice(rng: random.Random, told: Quantities, index: int) -> tuple[DecisionQuestion, str, int]:
    """A question for the owner of the most or the fewest, or for the number of one owner."""
    order = rng.sample(range(len(told.owners)), len(told.owners))
    if rng.random() < 0.5:
        most = rng.random() < 0.5
        word = {"Who is the {}?": ("youngest", "oldest"), "Which one costs the {}?": ("least", "most")}.get(
            told.most, ("fewest", "most")
        )[most]
        numbers = [told.numbers[i] for i in order]
        question = choice_question(told.most.format(word), [told.owners[i] for i in order])
        return question, "choice", numbers.index(max(numbers) if most else min(numbers))
    others = draw_numbers(rng, rng.choice((0, 0, 2, 5)))
    numbers = [told.numbers[index], *sorted({*told.numbers, *others}.difference({told.numbers[index]}))]
    rng.shuffle(numbers)
    question = choice_question(told.how_many.format(told.owners[index]), [str(number) for number in numbers])
    return question, "choice", numbers.index(told.numbers[index])


def decision_stream(seed: int, held_out: bool) -> Iterator[Decision]:
    """Decisions without end; held-out decisions are about inputs that no training decision is about."""
    rng = random.Random(f"decisions {seed} {held_out}")
    while True:
        decision = make_decision(rng)
        if is_held_out(decision.input) is held_out and not has_held_out_words(decision.input):
            yield decision


def held_out_decisions(seed: int, count: int) -> list[Decision]:
    """The first `count` held-out decisions."""
    return list(itertools.islice(decision_stream(seed, held_out=True), count))
