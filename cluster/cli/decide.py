"""`lopa decide`: an engine is opened, and answers questions about one input or about each of a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from cluster.batch.decision_work import decision_row
from cluster.batch.lines import DecisionLine, ParsedLine
from cluster.batch.open_engine import open_engine
from cluster.batch.source import read_lines
from cluster.openai.decisions.objects import decision_object
from cluster.openai.decisions.request import DecisionsRequest
from cluster.openai.errors import ApiError
from lopa_ray.decisions.answers import Answer, ChoiceAnswer, DecisionResult, PredicateAnswer
from lopa_ray.decisions.questions import Question
from lopa_ray.engine.config import Config
from lopa_ray.errors import PromptError, SettingsError
from lopa_ray.text.decision_prompt import value_text
from lopa_ray.text_input import parse_json


def read_questions(
    predicates: Sequence[str], choices: Sequence[str], scores: Sequence[str], file: str | None
) -> list[dict[str, Any]]:
    """Questions in OpenAI's shape, of file, then options. Raises SettingsError for a file without such a list."""
    asked: list[dict[str, Any]] = []
    if file is not None:
        try:
            asked = parse_json(Path(file).read_bytes())
        except ValueError as error:
            raise SettingsError(f"--questions: {file} is no JSON ({error})") from None
        if not isinstance(asked, list) or not all(isinstance(question, dict) for question in asked):
            hint = "write questions as OpenAI's API has them"
            raise SettingsError(f"--questions: {file} has no list of objects; {hint}")
    asked += [{"type": "predicate", "instructions": text} for text in predicates]
    for text in choices:
        instructions, *values = text.split("|")
        options = [{"value": value.strip()} for value in values]
        asked.append({"type": "choice", "instructions": instructions.strip(), "choices": options})
    for text in scores:
        instructions, *labels = text.split("|")
        levels = [{"label": label.strip()} for label in labels]
        asked.append({"type": "score", "instructions": instructions.strip(), "levels": levels})
    return asked


def decide_one(
    config: Config, given: str, asked: list[dict[str, Any]], *, local: bool, as_json: bool
) -> None:
    """Answer questions about an input, and print the answers. Raises PromptError, and what ends the request."""
    try:
        questions = DecisionsRequest.parse({"input": given, "questions": asked}).as_message("", "").questions
    except ApiError as error:
        raise PromptError(error.message) from None
    with open_engine(config, local=local) as engine:
        result = engine.decide(given, questions)
    if as_json:
        typer.echo(json.dumps(decision_row(decision_object(config.model.path, result))))
        return
    console = Console(highlight=False)
    console.print(answers_table(questions, result))
    work = f"{result.forwards} forwards in {result.steps} steps, {result.seconds:.3f} s"
    console.print(f"{result.input_tokens} input tokens, {work}", style="dim")


def answers_table(questions: Sequence[Question], result: DecisionResult) -> Table:
    table = Table("question", "answer", "confidence", "probabilities", box=None, pad_edge=False)
    for question, answer in zip(questions, result.answers, strict=True):
        asked = question.name or question.instructions or ""
        table.add_row(asked, *_answer_cells(answer))
    return table


def _answer_cells(answer: Answer) -> tuple[str, str, str]:
    if isinstance(answer, PredicateAnswer):
        yes = answer.probability
        return "yes" if yes >= 0.5 else "no", f"{abs(2 * yes - 1):.3f}", f"yes {yes:.3f}"
    values = [f"{value_text(value)} {probability:.3f}" for value, probability in answer.probabilities.items()]
    shown = value_text(answer.choice) if isinstance(answer, ChoiceAnswer) else f"{answer.score:.3f}"
    return shown, f"{answer.confidence:.3f}", ", ".join(values)


def read_decision_lines(source: str, asked: list[dict[str, Any]]) -> list[ParsedLine]:
    """The lines of a file; `asked` go with the lines that have no questions."""
    lines = read_lines(source)
    for at, line in enumerate(lines):
        if isinstance(line, DecisionLine) and asked and "questions" not in line.body:
            lines[at] = replace(line, body={**line.body, "questions": asked})
    return lines
