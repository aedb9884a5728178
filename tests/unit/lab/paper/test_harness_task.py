"""The harness's benchmarks as the paper asks them."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lopa_lab.paper.tasks.benchmarks import check_benchmark, open_benchmark
from lopa_lab.paper.tasks.harness_task import HarnessTask
from lopa_lab.word_problems import held_out_problems
from lopa_ray.errors import SettingsError

ROWS = [
    {
        "question": f"{name} has {n} pens and buys {n}. How many?",
        "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}",
    }
    for n, name in enumerate(("Ann", "Ben", "Cat", "Dan", "Eve", "Fay"), start=11)
]
MATH = [
    {"problem": "What is $1+1$?", "solution": "It is $\\boxed{2}$."},
    {"problem": "What is $1/2+1/4$?", "solution": "It is $\\boxed{\\frac{3}{4}}$."},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_word_problems_are_those_of_the_package() -> None:
    task = HarnessTask("word_problems", chat=True)
    (first, second) = task.problems(2)
    assert [first.problem_id, second.problem_id] == ["word_problems/0", "word_problems/1"]
    problem = held_out_problems(17, 1)[0]
    assert first.prompt == ({"role": "user", "content": problem.question},)
    assert HarnessTask("word_problems").problems(1)[0].prompt == problem.question
    assert task.grade(first, problem.answer) == {"exact_match": 1.0}
    assert task.grade(first, f"#### 1\n#### {problem.result}") == {"exact_match": 1.0}
    assert task.grade(first, f"#### {problem.result}\n#### 1") == {"exact_match": 0.0}
    assert task.grade(first, problem.result) == {"exact_match": 0.0}
    assert task.versions()["task word_problems"] == "1.0" and task.metric == "exact_match"
    assert len(task.problems()) == task.size == 256


def test_gsm8k_has_four_shots_that_are_not_the_problem(tmp_path: Path) -> None:
    task = HarnessTask("gsm8k", data=write(tmp_path / "problems.jsonl", ROWS))
    problems = task.problems()
    assert len(problems) == len(ROWS) and task.shots == 4
    for problem, row in zip(problems, ROWS, strict=True):
        assert isinstance(problem.prompt, str)
        assert problem.prompt.endswith(f"Question: {row['question']}\nAnswer:")
        assert problem.prompt.count("Question: ") == 5 and problem.prompt.count(row["question"]) == 1
        assert "Question:" in problem.stop
    assert task.versions()["shots"] == "the same file"
    again = HarnessTask("gsm8k", data=tmp_path / "problems.jsonl").problems(3)
    assert [problem.prompt for problem in again] == [problem.prompt for problem in problems[:3]]


def test_gsm8k_in_chats_has_its_shots_as_turns(tmp_path: Path) -> None:
    shots = write(tmp_path / "shots.jsonl", ROWS[1:])
    task = HarnessTask(
        "gsm8k", data=write(tmp_path / "problems.jsonl", ROWS[:1]), shots_data=shots, chat=True
    )
    (problem,) = task.problems()
    assert [message["role"] for message in problem.prompt] == ["user", "assistant"] * 4 + ["user"]
    answers = [message["content"] for message in problem.prompt[1::2]]
    assert set(answers) <= {row["answer"] for row in ROWS[1:]}
    assert task.versions()["shots"].startswith("shots.jsonl sha256:")


def test_gsm8k_reports_both_ways_of_reading_an_answer(tmp_path: Path) -> None:
    task = HarnessTask("gsm8k", data=write(tmp_path / "problems.jsonl", ROWS))
    problem = task.problems(1)[0]
    strict, flexible = "exact_match,strict-match", "exact_match,flexible-extract"
    assert task.metric == flexible
    assert task.grade(problem, "so 22\n#### 22") == {strict: 1.0, flexible: 1.0}
    assert task.grade(problem, "The answer is 22.") == {strict: 0.0, flexible: 1.0}
    assert task.grade(problem, "#### 22, no, 23") == {strict: 1.0, flexible: 0.0}


def test_math_compares_formulas(tmp_path: Path) -> None:
    task = HarnessTask("math", data=write(tmp_path / "problems.jsonl", MATH))
    one, two = task.problems()
    assert isinstance(one.prompt, str) and one.prompt.count("Problem:") == 5
    final = "Final Answer: The final answer is ${}$. I hope it is correct."
    assert task.grade(two, final.format("\\frac{3}{4}"))["exact_match"] == 1.0
    assert task.grade(two, final.format("0.75"))["exact_match"] == 1.0
    assert task.grade(two, final.format("\\frac{4}{3}")) == {"exact_match": 0.0, "math_verify": 0.0}
    assert task.grade(one, "\\boxed{2}") == {"exact_match": 0.0, "math_verify": 1.0}
    assert "math-verify" in task.versions()


def test_files_may_be_compressed_and_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    # A column of two types, which no table of the harness can have.
    rows: list[dict[str, Any]] = [{**row, "id": n if n % 2 else str(n)} for n, row in enumerate(ROWS)]
    rows[0] = {**rows[0], "question": "A pen\u2028costs 1. How many?"}
    plain = write(tmp_path / "plain.jsonl", rows)
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
    (tmp_path / "marked.jsonl").write_bytes(codecs.BOM_UTF8 + text)
    (tmp_path / "compressed").write_bytes(gzip.compress(codecs.BOM_UTF8 + text))
    expected = [
        (problem.problem_id, problem.prompt) for problem in HarnessTask("gsm8k", data=plain).problems()
    ]
    for name in ("marked.jsonl", "compressed"):
        task = HarnessTask("gsm8k", data=tmp_path / name)
        assert [(problem.problem_id, problem.prompt) for problem in task.problems()] == expected
        assert task.size == len(rows)
        assert task.versions()["data"].startswith(f"{name} sha256:")
    shots = HarnessTask("gsm8k", data=plain, shots_data=tmp_path / "compressed").problems(1)
    assert str(shots[0].prompt).count("Question: ") == 5


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("gsm8k", [{"text": "no question"}], "row 1: has no 'question'; got text"),
        ("gsm8k", [*ROWS, {"question": "How many?"}], "row 7: has no 'answer'; got question"),
        ("gsm8k", [*ROWS, {"question": "?", "answer": None}], "row 7: 'answer': got NoneType; allowed: str"),
        ("gsm8k", [{"question": " \n", "answer": "1"}], r"row 1: 'question': got ' .n'; allowed: text that"),
        ("gsm8k", ROWS[:4], "got 4 rows; allowed: at least 5 different ones"),
        ("gsm8k", [*ROWS[:4], ROWS[0]], "got 5 rows, 2 of them the same; allowed: at least 5 different"),
        ("math", [*MATH, {"problem": "1?"}], "row 3: has no 'solution'; got problem"),
        ("math", [*MATH, {"problem": "1?", "solution": "It is 1."}], r"row 3: 'solution': got no .boxed"),
        (
            "math",
            [{"problem": "1?", "solution": "\\boxed1{2}"}],
            r"of MATH from these rows \(AssertionError\)$",
        ),
        ("word_problems", [{"question": "1?", "answer": "#### 1"}], "row 1: has no 'result'"),
    ],
)
def test_rows_that_are_no_problems_are_named(
    tmp_path: Path, name: str, rows: list[dict[str, Any]], message: str
) -> None:
    file = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(SettingsError, match=message) as raised:
        HarnessTask(name, data=file)
    assert str(raised.value).startswith(f"--data: {file}")
    assert "with --data" not in str(raised.value)


def test_as_few_rows_as_shots_need(tmp_path: Path) -> None:
    problems = HarnessTask("gsm8k", data=write(tmp_path / "five.jsonl", ROWS[:5])).problems()
    assert [str(problem.prompt).count("Question: ") for problem in problems] == [5] * 5
    one, four = write(tmp_path / "one.jsonl", ROWS[:1]), write(tmp_path / "four.jsonl", ROWS[1:5])
    assert len(HarnessTask("gsm8k", data=one, shots_data=four).problems()) == 1
    three = write(tmp_path / "three.jsonl", ROWS[1:4])
    with pytest.raises(SettingsError, match=r"^--shots-data: .*three.*got 3 rows; allowed: at least 4"):
        HarnessTask("gsm8k", data=one, shots_data=three)
    with pytest.raises(SettingsError, match=r"^--shots-data: .*m\.jsonl, row 1: has no 'question'"):
        HarnessTask("gsm8k", data=one, shots_data=write(tmp_path / "m.jsonl", MATH))


def test_arguments_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    file, missing = write(tmp_path / "rows.jsonl", ROWS), tmp_path / "missing.jsonl"
    with pytest.raises(SettingsError, match="no benchmark 'gsm9k'; allowed: gsm8k, math"):
        check_benchmark("gsm9k")
    with pytest.raises(SettingsError, match=f"^--data: no file {missing}"):
        check_benchmark("humaneval", missing)
    with pytest.raises(SettingsError, match=f"^--shots-data: no file {missing}"):
        check_benchmark("gsm8k", file, missing)
    with pytest.raises(SettingsError, match=r"^--shots-data: needs --data"):
        check_benchmark("gsm8k", None, file)
    with pytest.raises(SettingsError, match=r"^--shots-data: got the file of --data"):
        check_benchmark("gsm8k", file, tmp_path / "." / "rows.jsonl")
    for name in ("math", "mbpp"):
        with pytest.raises(SettingsError, match="has its own shots"):
            open_benchmark(name, data=file, shots_data=missing)
    check_benchmark("gsm8k", file, write(tmp_path / "shots.jsonl", ROWS))
    assert open_benchmark("gsm8k", data=file).size == len(ROWS)
