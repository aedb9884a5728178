"""What a job reads."""

from __future__ import annotations

import gzip
import math
from datetime import datetime
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from cluster.batch.lines import DecisionLine, LineResult, PromptLine
from cluster.batch.source import Source
from lopa_ray.errors import SettingsError

TEXT = b"""{"prompt": "one", "id": 7}

nonsense
{"token_ids": [1, 2]}
"five"
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [("prompts.jsonl", b"\xef\xbb\xbf" + TEXT), ("prompts.jsonl.gz", gzip.compress(TEXT, mtime=0))],
)
def test_lines_keep_their_numbers_and_bad_ones_their_places(folder: str, name: str, content: bytes) -> None:
    with fsspec.open(f"{folder}/{name}", "wb") as file:
        file.write(content)
    source = Source(f"{folder}/{name}")
    assert source.summarize().numbers.tolist() == [1, 3, 4, 5]
    first, second = source.chunks(3)
    assert (first.index, second.index) == (0, 1)
    assert first.lines[0] == PromptLine(1, "one", 7)
    assert isinstance(first.lines[1], LineResult) and first.lines[1].line == 3
    assert first.lines[2:] + second.lines == (PromptLine(4, [1, 2]), PromptLine(5, "five"))


def test_parquet_rows_are_lines(folder: str) -> None:
    records = [
        {"id": 1, "prompt": "one", "settings": {"seed": 3, "max_new_tokens": None}},
        {"id": None, "messages": [{"role": "user", "content": "two"}]},
        {"id": 3},
    ]
    with fsspec.open(f"{folder}/prompts.parquet", "wb") as file:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    source = Source(f"{folder}/prompts.parquet")
    assert source.summarize().numbers == range(1, 4)
    # The first record says which columns there are: messages is none of them.
    (chunk,) = source.chunks(10)
    assert chunk.lines[0] == PromptLine(1, "one", 1, {"seed": 3})
    assert isinstance(chunk.lines[1], LineResult) and "no prompt" in chunk.lines[1].error
    assert isinstance(chunk.lines[2], LineResult) and chunk.lines[2].row["id"] == 3


def test_parquet_with_other_columns_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["one"], "answer": ["1"]}), path)
    with pytest.raises(
        SettingsError,
        match=r"a column 'answer'; allowed: draft, given_parts, id, input, messages, parse_special",
    ):
        Source(str(path)).summarize()


def test_parquet_rows_may_ask_questions(tmp_path: Path) -> None:
    """Fields that a question does not have are null in its row, because another question has them."""
    questions = [
        {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
        {
            "type": "choice",
            "name": "topic",
            "instructions": "What is it about?",
            "choices": [{"value": "bills"}, {"value": "other", "description": "Anything else."}],
        },
    ]
    path = tmp_path / "questions.parquet"
    records = [
        {"input": "Tom pays.", "questions": questions, "id": "a", "prompt": None},
        {"prompt": "Mia has 6 pens."},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    assert Source(str(path)).summarize().numbers == range(1, 3)
    decision, prompt = next(Source(str(path)).chunks(2)).lines
    assert decision == DecisionLine(1, {"input": "Tom pays.", "questions": questions}, "a")
    assert prompt == PromptLine(2, "Mia has 6 pens.")


def test_parquet_rows_that_json_cannot_say_have_no_result(tmp_path: Path) -> None:
    """Their ids would be in the results, which are JSON."""
    path = tmp_path / "prompts.parquet"
    for ids, said in ([math.nan, math.inf], "is not a JSON number"), ([datetime.now()] * 2, "datetime"):
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["one", "two"], "id": ids}), path)
        lines = list(Source(str(path)).lines())
        assert all(isinstance(line, LineResult) and said in line.error for line in lines) and len(lines) == 2


def test_a_compressed_file_that_is_cut_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(TEXT, mtime=0)[:-9])
    with pytest.raises(SettingsError, match=r"--input: cannot use .*prompts.jsonl.gz: EOFError"):
        Source(str(path)).summarize()


def test_a_changed_byte_is_another_input(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(TEXT)
    before = Source(str(path)).summarize()
    assert Source(str(path)).summarize() == before
    path.write_bytes(TEXT.replace(b"five", b"Five"))
    assert Source(str(path)).summarize() != before


def test_the_same_bytes_under_another_name_are_another_input(tmp_path: Path) -> None:
    """What is read depends on the name, too."""
    plain, compressed = (tmp_path / name for name in ("prompts.txt", "prompts.txt.gz"))
    for path in (plain, compressed):
        path.write_bytes(gzip.compress(b"1"))
    first, second = (Source(str(path)).summarize() for path in (plain, compressed))
    assert (first.format, second.format) == ("plain", "gzip") and first.sha256 == second.sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "does not exist"),
        ("empty.jsonl", "\n\n", "has no prompts"),
        ("broken.parquet", "text", "cannot use"),
    ],
)
def test_inputs_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=rf"--input: .*{message}|--input: {path} {message}"):
        Source(str(path)).summarize()


def test_unknown_protocols_are_named() -> None:
    with pytest.raises(SettingsError, match=r"--input: cannot use nowhere://x"):
        Source("nowhere://x")
