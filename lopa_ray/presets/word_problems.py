"""Grade-school word problems of two to four steps, from a seed, in the manner of GSM8K.

Each kind of problem has several wordings of the question and one of the answer. An answer
writes its calculations out (`3*4=12`) and ends with a line `#### 12`. Sums, differences and
products have two digits and quotients one, and each number of a question is always as long:
a very small model can learn to calculate them, and the layout of an answer is known before
its numbers, so much of it can be filled at once.

Training and held-out problems never overlap: the hash of the question says on which side
a problem lies, whatever the seed.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

HELD_OUT_SHARE = 32  # one question in this many is held out

NAMES = {
    "he": ("Tom", "Ben", "Sam", "Max", "Leo", "Omar", "Raj", "Jack"),
    "she": ("Anna", "Mia", "Zoe", "Lily", "Emma", "Nina", "Sara", "Kate"),
}
ITEMS = ("apples", "books", "cards", "coins", "cookies", "eggs", "pens", "shells", "stamps", "stickers")
BOXES = ("bags", "boxes", "baskets", "packs", "jars")
DAYS = ("Monday", "Tuesday", "Friday", "Sunday")
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 else -1,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, its worked answer and the number that the answer ends with."""

    question: str
    answer: str
    result: str


@dataclass(frozen=True, slots=True)
class ProblemTemplate:
    """Wordings of one kind of problem.

    `[t=a*b]` in the answer stands for the calculation written out, and names its result;
    the letters of `numbers` are drawn from the ranges given there. `<has|gets>` is one of these
    words, by chance: where nothing tells them apart a decoder has to choose, as in any text.
    """

    questions: tuple[str, ...]
    answer: str
    numbers: dict[str, tuple[int, int]]


SMALL, TWO_DIGITS = (2, 9), (10, 99)
TEMPLATES = (
    ProblemTemplate(
        (
            "{name} buys {a} {box} of {item} with {b} {item} in each. {He} gives {c} {item} to {friend}. "
            "How many {item} does {name} have left?",
            "{name} has {a} {box}. There are {b} {item} in each. {friend} takes {c} {item}. "
            "How many {item} does {name} have left?",
            "How many {item} does {name} have left from {a} {box} of {b} {item} if {he} gives {c} to {friend}?",
        ),
        "<So|Now> {name} <has|gets> [t=a*b] {item}. <Then|So> {name} <has|gets> [u=t-c] {item} left.",
        {"a": SMALL, "b": SMALL, "c": (10, 30)},
    ),
    ProblemTemplate(
        (
            "{name} has {a} {item}. {friend} has {b} times as many {item} as {name}. "
            "How many {item} do they have together?",
            "{friend} has {b} times as many {item} as {name}, and {name} has {a}. "
            "How many {item} do {name} and {friend} have together?",
        ),
        "<So|Now> {friend} <has|gets> [t=a*b] {item}. <So|In all> they <have|get> [u=a+t] {item}.",
        {"a": SMALL, "b": SMALL},
    ),
    ProblemTemplate(
        (
            "{name} buys {a} {item} for ${b} each and {c} {item2} for ${d} each. How much does {he} pay?",
            "One of the {item} costs ${b} and one of the {item2} costs ${d}. "
            "How much does {name} pay for {a} {item} and {c} {item2}?",
        ),
        "<So|Now> {name} <pays|gives> $[t=a*b]. <Then|So> {name} <pays|gives> $[u=c*d]. "
        "<So|In all> {name} <pays|gives> $[v=t+u].",
        {"a": SMALL, "b": SMALL, "c": SMALL, "d": SMALL},
    ),
    ProblemTemplate(
        (
            "{name} has ${c}. {He} buys {a} {item} for ${b} each. How much money does {he} have left?",
            "{name} buys {a} {item} at ${b} each and pays with ${c}. How much money does {name} have left?",
        ),
        "<So|Now> {name} <pays|gives> $[t=a*b]. <Then|So> {name} <has|gets> $[u=c-t] left.",
        {"a": SMALL, "b": SMALL, "c": (10, 99)},
    ),
    ProblemTemplate(
        (
            "{name} finds {a} {item} on {day}, {b} more {item} on {day2} than on {day}. "
            "How many {item} does {he} find on both days?",
            "On {day} {name} finds {a} {item}. On {day2} {he} finds {b} more than on {day}. "
            "How many {item} does {he} find on both days?",
        ),
        "<So|Now> {name} <finds|gets> [t=a+b] {item}. <So|In all> {name} <finds|gets> [u=a+t] {item}.",
        {"a": (10, 39), "b": (10, 20)},
    ),
    ProblemTemplate(
        (
            "{name} has {a} {item} and finds {b} more. {He} puts them all into {c} {box}. "
            "How many {item} are in each?",
            "{name} puts {a} {item} and {b} more {item} into {c} {box}. How many {item} are in each?",
        ),
        "<So|Now> {name} <has|gets> [t=a+b] {item}. <Then|So> each <has|gets> [u=t/c] {item}.",
        {"a": (10, 60), "b": (10, 20), "c": SMALL},
    ),
    ProblemTemplate(
        (
            "{name} makes {a} {item} a day for {b} days. {He} sells {c} {item} and gives {d} to {friend}. "
            "How many {item} does {name} have left?",
            "For {b} days {name} makes {a} {item} a day. {friend} gets {d} {item} and {c} are sold. "
            "How many {item} does {name} have left?",
        ),
        "<So|Now> {name} <has|makes> [t=a*b] {item}. <Then|So> {name} <has|gets> [u=t-c] {item}. "
        "<Then|So> {name} <has|gets> [v=u-d] {item} left.",
        {"a": SMALL, "b": SMALL, "c": (10, 30), "d": SMALL},
    ),
    ProblemTemplate(
        (
            "{name} sells {a} {item} for ${b} each and buys {c} {box} for ${d} each. "
            "How much money does {he} make?",
            "How much money does {name} make if {he} sells {a} {item} for ${b} each "
            "and buys {c} {box} for ${d} each?",
        ),
        "<So|Now> {name} <makes|gets> $[t=a*b]. <Then|So> {name} <pays|gives> $[u=c*d]. "
        "<Then|So> {name} <makes|gets> $[v=t-u].",
        {"a": SMALL, "b": SMALL, "c": SMALL, "d": SMALL},
    ),
    ProblemTemplate(
        (
            "{name} reads {a} pages on {day} and {b} pages on {day2}. The book has {c} pages. "
            "How many days does {he} need for the rest at {d} pages a day?",
            "A book has {c} pages. {name} reads {a} pages on {day}, {b} pages on {day2} "
            "and the rest at {d} pages a day. How many days does {he} need for the rest?",
        ),
        "<So|Now> {name} <reads|has> [t=a+b] pages. <Then|So> {name} <needs|has> [u=c-t] pages. "
        "<Then|So> {name} <needs|takes> [v=u/d] days.",
        {"a": (10, 30), "b": (10, 20), "c": (30, 99), "d": SMALL},
    ),
    ProblemTemplate(
        (
            "{name} has {a} {box} with {b} {item} in each. {friend} has {c} {box} with {d} {item} in each. "
            "They give {e} {item} to {uncle}. How many {item} are left?",
            "There are {b} {item} in each of the {a} {box} of {name} and {d} {item} in each of the {c} {box} "
            "of {friend}. {uncle} takes {e} {item}. How many {item} are left?",
        ),
        "<So|Now> {name} <has|gets> [t=a*b] {item}. <Then|So> {friend} <has|gets> [u=c*d] {item}. "
        "<So|In all> they <have|get> [v=t+u] {item}. <Then|So> they <have|get> [x=v-e] {item} left.",
        {"a": SMALL, "b": SMALL, "c": SMALL, "d": SMALL, "e": (10, 30)},
    ),
    ProblemTemplate(
        (
            "{name} is {a} years old. {friend} is {b} times as old. {uncle} is {c} years older than {friend}. "
            "How old is {uncle}?",
            "{uncle} is {c} years older than {friend}. {friend} is {b} times as old as {name}. "
            "{name} is {a} years old. How old is {uncle}?",
        ),
        "<So|Now> {friend} is [t=a*b] years old. <Then|So> {uncle} is [u=t+c] years old.",
        {"a": SMALL, "b": SMALL, "c": (10, 30)},
    ),
    ProblemTemplate(
        (
            "{name} saves ${a} a week for {b} weeks and gets ${c} from {friend}. "
            "How many {item} can {he} buy for ${d} each?",
            "{friend} gives {name} ${c}. {name} also saves ${a} a week for {b} weeks. "
            "How many {item} can {he} buy for ${d} each?",
        ),
        "<So|Now> {name} <saves|makes> $[t=a*b]. <Then|So> {name} <has|gets> $[u=t+c]. "
        "<Then|So> {name} can <buy|get> [v=u/d] {item}.",
        {"a": SMALL, "b": SMALL, "c": (10, 30), "d": SMALL},
    ),
)


def in_range(operation: str, result: int) -> bool:
    """Whether a result has the number of digits that this task allows."""
    low, high = SMALL if operation == "/" else TWO_DIGITS
    return low <= result <= high


def solve(answer: str, numbers: dict[str, int]) -> tuple[str, int] | None:
    """The answer with its calculations written out, and the last result; None if one is out of range."""
    known = dict(numbers)
    result = 0

    def calculate(match: re.Match[str]) -> str:
        nonlocal result
        name, left, operation, right = match.groups()
        result = OPERATIONS[operation](known[left], known[right])
        if not in_range(operation, result):
            raise ArithmeticError
        known[name] = result
        return f"{known[left]}{operation}{known[right]}={result}"

    try:
        text = re.sub(r"\[(\w)=(\w)([-+*/])(\w)\]", calculate, answer)
    except ArithmeticError:
        return None
    return text, result


def make_problem(rng: random.Random) -> Problem:
    """One problem of a random template."""
    template = rng.choice(TEMPLATES)
    solved = None
    while solved is None:
        numbers = {letter: rng.randint(*span) for letter, span in template.numbers.items()}
        solved = solve(template.answer, numbers)
    pronoun = rng.choice(("he", "she"))
    name = rng.choice(NAMES[pronoun])
    friend, uncle = rng.sample([other for names in NAMES.values() for other in names if other != name], 2)
    item, item2 = rng.sample(ITEMS, 2)
    day, day2 = rng.sample(DAYS, 2)
    fields = {
        "name": name, "friend": friend, "uncle": uncle, "item": item, "item2": item2, "day": day, "day2": day2,
        "he": pronoun, "He": pronoun.capitalize(), "box": rng.choice(BOXES),
    }  # fmt: skip
    text, result = solved
    text = re.sub(r"<([^>]*)>", lambda match: rng.choice(match[1].split("|")), text)
    question = rng.choice(template.questions).format(**fields, **numbers)
    return Problem(question, f"{text.format(**fields)}\n#### {result}", str(result))


def make_drill(rng: random.Random) -> Problem:
    """Four calculations with nothing around them, which takes few tokens per calculation."""
    done: list[str] = []
    while len(done) < 4:
        operation = rng.choice("++--*/")
        a, b = (rng.randint(*SMALL), rng.randint(*SMALL)) if operation in "*/" else _pair(rng)
        if operation == "/":
            a *= b
        result = OPERATIONS[operation](a, b)
        if in_range(operation, result):
            done.append(f"{a}{operation}{b}={result}")
    question = "Work out " + ", ".join(text.split("=")[0] for text in done) + "."
    result_text = done[-1].split("=")[1]
    return Problem(question, ". ".join(done) + f".\n#### {result_text}", result_text)


def _pair(rng: random.Random) -> tuple[int, int]:
    """Two numbers to add or subtract; the second is small half of the time."""
    return rng.randint(2, 90), rng.randint(2, rng.choice((20, 60)))


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the held-out side."""
    return hashlib.sha256(question.encode()).digest()[0] % HELD_OUT_SHARE == 0


def training_problems(seed: int, drill_share: float = 0.0) -> Iterator[Problem]:
    """Training problems without end, a share of them drills. There are no held-out drills."""
    rng = random.Random(f"train {seed}")
    while True:
        problem = make_drill(rng) if rng.random() < drill_share else make_problem(rng)
        if not is_held_out(problem.question):
            yield problem


def held_out_stream(seed: int) -> Iterator[Problem]:
    """Different problems that no training stream contains, without end."""
    rng = random.Random(f"held out {seed}")
    questions: set[str] = set()
    while True:
        problem = make_problem(rng)
        if is_held_out(problem.question) and problem.question not in questions:
            questions.add(problem.question)
            yield problem


def held_out_problems(seed: int, count: int) -> list[Problem]:
    """The first `count` problems of `held_out_stream`."""
    return list(itertools.islice(held_out_stream(seed), count))


def extract_answer(text: str) -> str | None:
    """The number after the last `####`, or None."""
    found = re.findall(r"####\s*(-?\d+)", text)
    return found[-1] if found else None


def is_correct(problem: Problem, text: str) -> bool:
    """Whether a generated text ends with the right number."""
    return extract_answer(text) == problem.result
