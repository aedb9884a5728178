"""The generator of the demo model's problems: deterministic, true, split, and short enough."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from demo_tokenizer import chat_prompt
from drills import make_drill
from lopa_lab.word_problems import (
    Problem,
    extract_answer,
    held_out_problems,
    is_correct,
    training_problems,
)
from lopa_lab.word_problems.calculation import LARGEST
from lopa_lab.word_problems.generator import KINDS, is_held_out, tell
from lopa_lab.word_problems.stories import DISTRACTIONS
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.text.tokenizer import Tokenizer

ANSWER = 64


def training(seed: int, count: int) -> list[Problem]:
    return list(itertools.islice(training_problems(seed), count))


def calculations(problem: Problem) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", problem.answer)
    return [(int(a), operation, int(b), int(result)) for a, operation, b, result in found]


def test_a_seed_gives_the_same_problems() -> None:
    assert training(5, 50) == training(5, 50)
    assert training(5, 50) != training(6, 50)
    assert held_out_problems(5, 20) == held_out_problems(5, 20)


def test_every_calculation_is_true_and_the_last_one_is_the_answer() -> None:
    for problem in (
        training(1, 1000) + held_out_problems(1, 200) + held_out_problems(1, 200, held_out_words=True)
    ):
        found = calculations(problem)
        assert 1 <= len(found) <= 4
        for a, operation, b, result in found:
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operation] == result
            assert 1 <= result <= LARGEST
        assert problem.answer.endswith(f"\n#### {found[-1][3]}")
        assert problem.result == str(found[-1][3])
        assert is_correct(problem, problem.answer)


def test_the_question_tells_every_number_that_was_not_calculated() -> None:
    for problem in training(2, 500):
        told = set(re.findall(r"\d+", problem.question))
        if re.search(r"\b([Hh]alf|twice)\b", problem.question):
            told.add("2")
        for a, _, b, result in calculations(problem):
            assert {str(a), str(b)} <= told
            told.add(str(result))


def test_held_out_problems_are_no_training_problems() -> None:
    held_out = held_out_problems(3, 300)
    questions = {problem.question for problem in held_out}
    assert len(questions) == 300
    assert all(map(is_held_out, questions))
    assert not any(is_held_out(problem.question) for seed in range(5) for problem in training(seed, 1000))


WORDINGS = {sentence for kind in KINDS for sentence in kind.story}


def spellings_of(wording: str) -> list[str]:
    """A wording with each choice of its alternatives, `<has|had>`."""
    parts = [part.split("|") for part in re.split(r"<([^>]*)>", wording)]
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def pattern_of(wording: str) -> re.Pattern[str]:
    """What a sentence in this wording looks like, with any words and numbers."""
    seen: set[str] = set()

    def of_part(part: str) -> str:
        if not part.startswith("{"):
            return re.escape(part)
        name = part.strip("{}")
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return rf"(?P<{name}>[\w$]+)"

    return re.compile(r"(?<!\w)" + "".join(map(of_part, re.split(r"(\{\w+\})", wording))))


def test_held_out_words_stand_in_no_training_problem() -> None:
    held_out = {wording for sentence in WORDINGS for wording in sentence.held_out}
    assert not any("<" in wording for wording in held_out)
    patterns = [pattern_of(wording) for wording in held_out]
    assert len(patterns) >= 50

    def in_held_out_words(problem: Problem) -> bool:
        return any(pattern.search(problem.question) for pattern in patterns)

    assert all(map(in_held_out_words, held_out_problems(4, 300, held_out_words=True)))
    assert not any(map(in_held_out_words, training(4, 5000) + held_out_problems(4, 300)))


def test_no_choice_of_words_makes_a_held_out_wording() -> None:
    for sentence in WORDINGS:
        spellings = {spelling for wording in sentence.trained for spelling in spellings_of(wording)}
        assert spellings.isdisjoint(sentence.held_out)


def test_every_kind_can_be_told_and_every_sentence_has_several_wordings() -> None:
    rng = random.Random(0)
    spellings = [{s for wording in sentence.trained for s in spellings_of(wording)} for sentence in WORDINGS]
    assert sum(map(len, spellings)) >= 1500
    assert min(map(len, spellings)) >= 2
    for kind in KINDS:
        problem = tell(rng, kind, held_out_words=False)
        assert problem is not None and not re.search(r"[{}<>|\[\]]", problem.question + problem.answer)
    assert 1 <= len(calculations(make_drill(rng))) <= 4


def test_problems_are_of_many_sizes_and_some_have_a_sentence_that_does_not_matter() -> None:
    problems = training(9, 2000)
    steps = [len(calculations(problem)) for problem in problems]
    assert all(steps.count(count) >= 20 for count in (1, 2, 3, 4))
    digits = [len(problem.result) for problem in problems]
    assert all(digits.count(count) >= 200 for count in (1, 2, 3))
    patterns = [pattern_of(s) for wording in DISTRACTIONS for s in spellings_of(wording)]
    distracted = sum(any(pattern.search(problem.question) for pattern in patterns) for problem in problems)
    assert 200 <= distracted <= 1000


def test_prompts_and_answers_fit_under_the_shipped_tokenizer() -> None:
    tokenizer = Tokenizer.from_pretrained(DEMO_MODEL)
    assert tokenizer is not None
    for problem in training(4, 1000):
        assert len(tokenizer.encode(problem.answer)) < ANSWER
        chat = tokenizer.apply_chat_template([{"role": "user", "content": problem.question}])
        assert tokenizer.decode(chat, skip_special_tokens=False) == chat_prompt(problem.question)
        assert tokenizer.decode(tokenizer.encode(problem.answer)) == problem.answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3*4=12\n#### 12", "12"),
        ("#### 7\n#### 8", "8"),
        ("####12", "12"),
        ("#### -3", "-3"),
        ("the answer is 12", None),
        ("", None),
        ("#### ", None),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


def test_answers_differ_in_wording_alone() -> None:
    answers = [problem.answer for problem in training(8, 2000)]
    assert not any(mark in answer for answer in answers for mark in "<|>[]{}")
    for words in (("So ", "Now "), (". Then ", ". So "), (" has ", " gets "), ("Together they", "So they")):
        shares = [sum(word in answer for answer in answers) / len(answers) for word in words]
        assert min(shares) > 0.02


def test_alternatives_have_as_many_tokens_as_each_other() -> None:
    """So a choice of words never moves what comes behind it."""
    tokenizer = Tokenizer.from_pretrained(DEMO_MODEL)
    assert tokenizer is not None
    for kind in KINDS:
        for behind_space, found in re.findall(r"( ?)<([^>]*)>", kind.answer):
            lengths = {len(tokenizer.encode(behind_space + word)) for word in found.split("|")}
            assert len(lengths) == 1, found
