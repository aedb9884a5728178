"""`lopa bench schemas`: what becomes of the schemas of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lopa_lab.bench.schemas import refusal_reason
from support.bench_command import bench, bench_record

WHOLE = {"type": "integer", "minimum": 3}
FILES: dict[str, Any] = {
    "easy/plain.json": WHOLE,
    "easy/tested.json": {
        "schema": {"type": "object", "properties": {"a": WHOLE, "b": WHOLE}},
        "tests": [
            {"description": "in order", "data": {"a": 3, "b": 4}, "valid": True},
            {"description": "in another order", "data": {"b": 4, "a": 3}, "valid": True},
            {"description": "below the minimum", "data": {"a": 2}, "valid": False},
        ],
    },
    "hard/refused.json": {"type": "object", "properties": {"a": {"not": {}}}},
    "hard/too_large.json": {"type": "string", "minLength": 100_000},
}


def test_schemas_are_counted_by_folder_and_outcome(tmp_path: Path) -> None:
    for name, content in FILES.items():
        path = tmp_path / "schemas" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    record = bench_record(tmp_path, "schemas", str(tmp_path / "schemas"))
    assert [(row["folder"], row["outcome"], row["schemas"], row["share %"]) for row in record.rows] == [
        ("easy", "accepted", 2, 100),
        ("hard", "refused: not", 1, 50),
        ("hard", "refused: too large", 1, 50),
    ]
    easy = record.rows[0]
    names = ("valid possible", "valid impossible", "invalid refused", "invalid possible")
    assert [easy[name] for name in names] == [1, 1, 1, 0]


def test_a_folder_without_schemas(tmp_path: Path) -> None:
    result = bench("schemas", str(tmp_path))
    assert result.exit_code == 2
    assert "no JSON files" in result.output
    (tmp_path / "a.json").write_text("{")
    assert "it is no JSON" in bench("schemas", str(tmp_path)).output


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "JSON schema at a.b: keyword $dynamicRef, maxContains is not supported; leave it out",
            "$dynamicRef",
        ),
        ("JSON schema: oneOf: its schemas may be valid together; use anyOf", "oneOf"),
        (
            "JSON schema: it allows no value of finite length, or none; relax it",
            "it allows no value of finite length",
        ),
        ("the pattern or schema is too large: it needs more than 5 s", "too large"),
    ],
)
def test_reasons(message: str, reason: str) -> None:
    assert refusal_reason(message) == reason
