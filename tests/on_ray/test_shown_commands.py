"""Commands that pages show without a line that says what they need: they run as they stand.

`.ci/run` runs `make demo` and the targets of make that check something. tests/serving starts `lopa serve`,
tests/unit/lab/bench and tests/on_nodes run every `lopa bench` at its smallest size, tests/unit/lab/experiments
every `lopa experiment`, and tests/unit/lab/paper `lopa reproduce`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from lopa_lab.word_problems import held_out_problems
from support.page_commands import all_blocks, commands, program
from support.paths import DATA, GOLDEN

RUN_ELSEWHERE = {"bench", "experiment", "serve"}


PROBLEM = held_out_problems(2, 1)[0].question

MANY_PROBLEMS = 100

STANDS_FOR = {
    "PROMPT": PROBLEM,
    "...": PROBLEM,
    "CASES.jsonl": "tests/golden/d2f_llada_cases.jsonl",
    "DIR": "tests/golden/models",
}


def shown() -> list[list[str]]:
    """What follows `lopa`, each command once."""
    programs = [
        program(words)
        for block in all_blocks()
        if not block.needs
        for words in commands(block)
        if not any(word.startswith("[--") for word in words)
    ]
    once = {tuple(words[1:]) for words in programs if words and words[0] == "lopa"}
    return [list(words) for words in sorted(once) if words[0] not in RUN_ELSEWHERE]


def expanded(word: str) -> list[str]:
    """A shell's braces."""
    before, brace, rest = word.partition("{")
    choices, closed, after = rest.partition("}")
    if not (brace and closed) or " " in word or ":" in word:
        return [word]
    return [f"{before}{choice}{after}" for choice in choices.split(",")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run commands in, with what they read."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "golden").symlink_to(GOLDEN)
    (tmp_path / "tests" / "data").symlink_to(DATA)
    prompts = [json.dumps({"prompt": problem.question}) for problem in held_out_problems(3, 2)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    (tmp_path / "inputs.jsonl").write_text(json.dumps({"input": PROBLEM}) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cases() -> list[Any]:
    """Slow ones; recorded cases, many problems and figures take minutes together."""
    return [
        pytest.param(
            words, id=" ".join(words), marks=pytest.mark.long if takes_minutes(words) else pytest.mark.slow
        )
        for words in shown()
    ]


def takes_minutes(words: list[str]) -> bool:
    many_problems = "--limit" in words and int(words[words.index("--limit") + 1]) >= MANY_PROBLEMS
    return many_problems or words[0] in ("conformance", "reproduce") or words[:2] == ["eval", "ls"]


@pytest.mark.parametrize("words", cases())
def test_a_command_runs_as_it_stands(words: list[str], folder: Path) -> None:
    words = [part for word in words for part in expanded(STANDS_FOR.get(word, word))]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.output.strip() or "--output" in words
    for option in ("--output", "--trace"):
        if option in words:
            written = folder / words[words.index(option) + 1]
            assert written.exists()
            (shutil.rmtree if written.is_dir() else Path.unlink)(written)
