"""Problems in the grammar's wordings: stories of one quantity with what happens to it, and stories in one piece."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence

from lopa_lab.word_problems.calculation import draw_number, solve
from lopa_lab.word_problems.grammar import (
    GRAMMAR,
    MORE_WORDS,
    RULES,
    capitalise,
    draw_words,
    expand,
    tell_numbers,
)
from lopa_lab.word_problems.held_out_words import has_held_out_words
from lopa_lab.word_problems.problem import Problem
from lopa_lab.word_problems.stories import NUMBER

LARGE, LARGE_REJECTED = 200, 0.4
"""A problem with a result from `LARGE` on is drawn again with this probability."""
CHAIN_SHARE = 0.42
"""The share of stories of one quantity; the rest are in one piece."""
ASIDE_SHARE = 0.15
"""The share of problems with a sentence that does not matter."""
STORIES = GRAMMAR["stories"]
WEIGHTS = list(itertools.accumulate(story.get("weight", 1.0) for story in STORIES))
JOINTS = {"and": 0.1, ", and then": 0.03, ";": 0.01, ", and": 0.04}
"""Words that may join two sentences, and how often."""
GREETINGS = ("Hello! ", "Hi, ", "Question: ", "Please help: ", "Can you solve this? ", "Math problem: ")


def make_told_problem(rng: random.Random) -> Problem:
    """A problem that has no held-out wording; its answer has calculations and a result from 1 to 999."""
    while True:
        sentences, answer, ranges, words_of = (
            draw_chain(rng) if rng.random() < CHAIN_SHARE else draw_story(rng)
        )
        numbers = {letter: draw_told_number(rng, kind) for letter, kind in ranges.items()}
        solved = solve(answer, numbers)
        if solved is None or (solved[2] >= LARGE and rng.random() < LARGE_REJECTED):
            continue
        words, subject = draw_words(rng)
        words |= draw_more_words(rng, words_of)
        past = rng.random() < 0.45
        if len(sentences) > 1 and rng.random() < ASIDE_SHARE:
            sentences.insert(rng.randrange(1, len(sentences)), "@aside")
        told = [expand(rng, with_letter(rng, sentence), subject.person, past) for sentence in sentences]
        told_numbers = numbers | {"z": draw_number(rng, NUMBER)}
        question = tell_numbers(rng, fill(join(rng, told), words), told_numbers)
        if subject.subject.startswith("the ") and rng.random() < 0.5:
            question = question.replace("the ", "a ", 1) if question.startswith("the ") else question
        question = in_a_hurry(rng, capitalise(question))
        if has_held_out_words(question):
            continue
        text, result, _ = solved
        person = "3" if subject.person == "3" else "p"
        text = fill(expand(rng, text, person, past=False), {**words, "f": in_answer(words["f"])})
        text = re.sub(r" {2,}", " ", text).replace(" .", ".").strip()
        return Problem(question, f"{capitalise_sentences(text)}\n#### {result}", str(result))


def in_answer(friend: str) -> str:
    """The name of another person in an answer."""
    return re.sub(r"^my ", "your ", friend)


def capitalise_sentences(text: str) -> str:
    """An answer's sentences begin with capitals already, but for a person who comes first."""
    return text[:1].upper() + text[1:]


def draw_told_number(rng: random.Random, kind: str) -> int:
    """A number of this range, more often a round number."""
    if kind == "few":
        return rng.choice((2, 2, 2, 3, 3, 4, 5, 6))
    number = draw_number(rng, kind)
    if number > 20 and rng.random() < 0.2:
        return number // 10 * 10 if number < 100 or rng.random() < 0.5 else number // 50 * 50
    return number


def draw_chain(rng: random.Random) -> tuple[list[str], str, dict[str, str], str]:
    """Sentences, answer and ranges of numbers of a quantity that something happens to."""
    if rng.random() < 0.2:
        events = rng.choices(("arrive", "leave"), k=rng.choice((1, 2, 2)))
        return *with_events("be_there", "", {"a": NUMBER}, [*events, "ask_there"]), ""
    begin = rng.choices(tuple(GRAMMAR["begin"]), (5, 4, 2))[0]
    answer, ranges = GRAMMAR["begin"][begin]
    ends = rng.choices(("", "ask_split", "ask_group"), (6, 1.3, 1))[0]
    fewest = 0 if answer or ends else 1
    events = rng.choices(("gain", "lose", "halve", "double"), (4, 5, 1, 0.4), k=rng.choice((fewest, 1, 1, 2)))
    if not ends:
        losses = [event in ("lose", "halve") for event in events]
        ends = (
            "ask_total" if not any(losses) else "ask_left" if losses[-1] or rng.random() < 0.3 else "ask_now"
        )
    return *with_events(begin, answer, ranges, [*events, ends]), ""


def with_events(
    begin: str, answer: str, ranges: dict[str, str], events: Sequence[str]
) -> tuple[list[str], str, dict[str, str]]:
    """Sentences, answer and ranges of a beginning and what follows it, rules of the grammar."""
    letters, results, of = iter("cdefg"), iter("uvwx"), "t" if answer else "a"
    sentences, ranges = ["@" + begin], dict(ranges)
    for event in events:
        step, kind = GRAMMAR["steps"].get(event, ("", ""))
        letter = next(letters) if kind else ""
        if letter:
            ranges[letter] = kind
        if step:
            to = next(results)
            if not answer:
                step = step.replace("<Then|So> {yhe}", "<So|Now> {y}").replace("<Then|", "<Now|")
            answer += step.replace("{to}", to).replace("{of}", of).replace("{x}", letter)
            of = to
        sentences.append(f"@{event}:{letter}")
    return sentences, answer.strip(), ranges


def with_letter(rng: random.Random, sentence: str) -> str:
    """A sentence in which the number of an event has its letter: `@gain:c` is a wording of `gain` about number `c`."""
    rule, colon, letter = sentence.partition(":")
    return rng.choice(RULES[rule[1:]]).replace("#x", "#" + letter) if colon else sentence


def draw_story(rng: random.Random) -> tuple[list[str], str, dict[str, str], str]:
    """Sentences, answer, ranges of numbers of a story in one piece, and which list has more of its words."""
    story = rng.choices(STORIES, cum_weights=WEIGHTS)[0]
    sentences = [rng.choice(wordings) for wordings in story["story"]]
    return sentences, story["answer"], story["numbers"], story.get("words", "")


def draw_more_words(rng: random.Random, words_of: str) -> dict[str, str]:
    """The words of a list of `grammar_words.toml` that belong together."""
    if words_of == "parts":
        whole, part, other = rng.choice(MORE_WORDS["parts"])
        return {"item": whole, "part": part, "other_part": other, "one2": other}
    if words_of == "seats":
        venue, box, item = rng.choice(MORE_WORDS["seats"])
        return {
            "venue": venue,
            "box": box,
            "abox": box.removesuffix("s") if box != "shelves" else "shelf",
            "item": item,
        }
    return {}


def fill(text: str, words: dict[str, str]) -> str:
    """The text with words in its placeholders."""
    return re.sub(r"{(\w+)}", lambda match: words[match[1]], text)


def join(rng: random.Random, told: list[str]) -> str:
    """Sentences in a text, some of them joined, or all of them in one question."""
    *statements, question = told
    if not statements:
        return question
    simple = not any(". " in statement for statement in statements) and question.startswith(("how", "what"))
    if simple and len(statements) <= 2 and ". " not in question and rng.random() < 0.12:
        return f"if {' and '.join(statements)}, {question}"
    text = statements[0]
    for statement in statements[1:]:
        text += joint(rng) + statement
    return f"{text}. {question}"


def joint(rng: random.Random) -> str:
    """The words between two statements."""
    chance = rng.random()
    for words, share in JOINTS.items():
        if (chance := chance - share) < 0:
            return f"{words} " if words[0] in ",;" else f" {words} "
    return ". "


def in_a_hurry(rng: random.Random, question: str) -> str:
    """Some questions as people type them: in small letters, without the last sign, with a greeting."""
    if rng.random() < 0.03:
        question = rng.choice(GREETINGS) + question
    if rng.random() < 0.04:
        question = question.lower()
    if rng.random() < 0.04:
        question = question.removesuffix("?").removesuffix(".")
    return question
