"""LopaDecider: typed questions as a step of a Ray Data pipeline, on a pool of actors.

dataset.map_batches(
    LopaDecider, fn_constructor_kwargs={"questions": [...], "config": "demo"}, batch_size=64, concurrency=4
)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import DecisionLine, LineResult
from cluster.batch.source import without_nulls
from cluster.jobs.data_batches import as_table, check_new_columns, plain, start_engine, with_columns
from cluster.openai.decisions.request import DecisionsRequest
from cluster.openai.errors import ApiError
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError

ANSWERS, ERROR = "answers", "error"
"""Columns that every result adds: the answers as JSON text, as OpenAI's API has them, and why there are none."""


class LopaDecider:
    """The class for `Dataset.map_batches`: it takes rows with inputs and returns the same rows with answers."""

    def __init__(
        self,
        questions: Sequence[Mapping[str, Any]],
        config: str | Path = "demo",
        overrides: dict[str, dict[str, Any]] | None = None,
        *,
        input_column: str = "input",
        output_prefix: str = "",
    ) -> None:
        """`questions`: about every row, in the shape of OpenAI's API; each needs a `name` of its own, after which its
        columns are called. `input_column` has a text or messages. For the others see `LopaPredictor`. Raises
        SettingsError for wrong questions too, before the model is loaded."""
        self._questions = [dict(question) for question in questions]
        self._input, self._prefix = input_column, output_prefix
        try:
            parsed = DecisionsRequest.parse({"input": "", "questions": self._questions}).questions
        except ApiError as error:
            raise SettingsError(error.message) from None
        names = [question.name for question in parsed]
        if None in names or len(set(names)) < len(names):
            hint = "each needs one of its own, for its columns"
            raise SettingsError(f"questions: got the names {names}; {hint}")
        self._types: dict[str, str] = {}  # column → pyarrow's name of its type
        for question in parsed:
            self._types[str(question.name)] = "string" if question.type == "choice" else "double"
            if question.type != "predicate":
                self._types[f"{question.name}_confidence"] = "double"
        self._types |= {ANSWERS: "string", ERROR: "string"}
        self._engine = start_engine(Config.load(config, overrides))

    def __call__(self, batch: Any) -> Any:
        """Answer the questions about the rows of a batch, in flight together; returns a pyarrow.Table.

        `batch` is a mapping of columns or a pyarrow.Table. All columns stay. A predicate NAME adds the column NAME, its
        probability. A choice adds NAME, the value as text, a score adds NAME, the mean level, and both NAME_confidence.
        `answers` has all probabilities, as JSON text. A row that cannot be answered has the reason in `error`, which is
        null in the others, and no answers. Raises SettingsError for a batch without inputs, and if answers have names
        that columns have already.
        """
        table = as_table(batch)
        names = table.column_names
        if self._input not in names:
            got = ", ".join(names)
            raise SettingsError(f"got the columns {got}; needed: {self._input}; set input_column")
        check_new_columns(names, self._prefix, self._types, "answers")
        records = [without_nulls(plain(record)) for record in table.select([self._input]).to_pylist()]
        lines = [
            DecisionLine(number, {"input": record.get(self._input), "questions": self._questions})
            for number, record in enumerate(records, 1)
        ]
        rows = [_row(output) for output in decode_lines(self._engine, lines, raw=False)]
        return with_columns(table, self._prefix, self._types, rows)


def _row(output: LineResult) -> dict[str, Any]:
    if output.error:
        return {ERROR: output.error}
    answers = output.row["answers"]
    row: dict[str, Any] = {ANSWERS: json.dumps(answers, ensure_ascii=False)}
    for answer in answers:
        name, kind = answer["name"], answer["type"]
        value = answer["probability" if kind == "predicate" else kind]
        row[name] = json.dumps(value) if isinstance(value, bool) else value  # of a choice
        if kind != "predicate":
            row[f"{name}_confidence"] = answer["confidence"]
    return row
