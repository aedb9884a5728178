"""Texts from outside, by every reader of files: a byte order mark, other encodings, and JSON that is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.batch.lines import LineResult
from cluster.batch.source import read_lines
from cluster.cli.decide import read_questions
from cluster.serving.http.api_keys import load_api_keys
from cluster.serving.serve_config_file import read_serve_config
from lopa_lab.conformance.cases import read_cases
from lopa_lab.decisions.labels import read_labelled
from lopa_ray.config.yaml_files import read_config, serve_config
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.model.config_json.json_file import read_json
from lopa_ray.text_input import BYTE_ORDER_MARK, parse_json

QUESTION: dict[str, Any] = {"type": "predicate", "instructions": "Is it so?"}
LABELLED = {"input": "Tom has 6 pens.", "questions": [{**QUESTION, "answer": True}]}
CASE = {"id": "a", "kind": "lopa", "model": "dream"}

Reader = Callable[[Path], Any]
READERS: dict[str, tuple[str, Reader]] = {
    "settings.yaml": ("decode: {seed: 3}\n", read_config),
    "serve.yaml": (serve_config().read_text(), read_serve_config),
    "keys.txt": ("secret\nother\n", lambda path: load_api_keys(str(path), {})),
    "config.json": ('{"model_type": "Dream"}', read_json),
    "questions.json": (json.dumps([QUESTION]), lambda path: read_questions([], [], [], str(path))),
    "labelled.jsonl": (json.dumps(LABELLED), read_labelled),
    "cases.jsonl": (json.dumps(CASE), read_cases),
    "prompts.jsonl": ('{"prompt": "a"}\n"b"\n', lambda path: read_lines(str(path))),
}


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path, name: str) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.write_text(text)
    expected = read(path)
    path.write_bytes(BYTE_ORDER_MARK + text.encode())
    assert read(path) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("name", READERS)
def test_files_in_other_encodings_are_named(tmp_path: Path, name: str, encoding: str) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    with pytest.raises(
        (SettingsError, CheckpointError),
        match=rf"{name}.*its encoding is {encoding[:6].upper()}; save it as UTF-8",
    ):
        read(path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("NaN", "NaN is not a JSON number"),
        ("-Infinity", "-Infinity is not a JSON number"),
        ("[-1e999]", "too large"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "the name 'c' is twice in one object"),
        (r'"\ud800"', "surrogate"),
        ("9" * 5000, "too many digits"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("name", ["questions.json", "labelled.jsonl", "prompts.jsonl"])
def test_what_json_cannot_say_is_refused(tmp_path: Path, name: str, value: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(f'{{"prompt": "a", "id": {value}}}')
    assert said in reason(READERS[name][1], path)


def reason(read: Reader, path: Path) -> str:
    """Why a file, or its line, is refused."""
    try:
        (result,) = read(path)
    except SettingsError as error:
        return str(error)
    assert isinstance(result, LineResult)
    return result.error


def test_numbers_and_characters_that_json_has_are_read() -> None:
    assert parse_json('\ufeff{"a": [1e308, -0.0, 1e-999], "b": "\\ud83d\\ude42 NaN"}') == {
        "a": [1e308, -0.0, 0.0],
        "b": "🙂 NaN",
    }
