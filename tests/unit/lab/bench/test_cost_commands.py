"""`lopa bench` of single parts, at its smallest sizes. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bench_command import bench, bench_record

pytestmark = pytest.mark.slow


COMMANDS = {
    "decisions": (
        (
            "--questions",
            "1,3",
            "--prefix",
            "input,joint",
            "--input",
            "8",
            "--question",
            "4",
            "--repeats",
            "1",
        ),
        4,
    ),
    "host": (("--requests", "1,2", "--branches", "2", "--steps", "4"), 4),
    "quantization": (("--problems", "2", "--formats", "float32,bfloat16/w8a8,bfloat16/fp8"), 3),
    "constraints": (("--tokens", "80", "--branches", "2"), 5),
    "pages": (("--requests", "10", "--branches", "1,2", "--repeats", "1"), 22),
    "cluster": ((), 17),
}
"""Options, and the number of rows."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(name: str, tmp_path: Path) -> None:
    options, rows = COMMANDS[name]
    record = bench_record(tmp_path, name, *options)
    assert record.name == name
    assert len({record.key_of(row) for row in record.rows}) == len(record.rows) == rows
    assert record.figures
    for row in record.rows:
        assert any(isinstance(row.get(figure), float) for figure in record.figures)


@pytest.mark.long
def test_number_formats_are_compared_with_the_first(tmp_path: Path) -> None:
    first, *others = bench_record(tmp_path, "quantization", *COMMANDS["quantization"][0]).rows
    assert (first["dtype"], first["quantization"], first["same tokens %"], first["error of logits %"]) == (
        "float32", "none", 100, 0,
    )  # fmt: skip
    assert [(row["dtype"], row["quantization"]) for row in others] == [
        ("bfloat16", "w8a8"),
        ("bfloat16", "fp8"),
    ]
    for row in others:
        assert 0 < row["error of logits %"] < 10
        assert row["MB"] < first["MB"]


@pytest.mark.long
def test_a_stored_prefix_is_found(tmp_path: Path) -> None:
    rows = bench_record(tmp_path, "prefix", "--shared", "32", "--requests", "2", "--problems", "2").rows
    assert len(rows) == 5
    by_cache = {(row["decoder"], row["prefix cache"]): row for row in rows}
    assert by_cache["block_diffusion", "none"]["found"] == 0
    assert by_cache["block_diffusion", "exact"]["positions saved"] == 32
    assert by_cache["lopa", "approximate, asked again"]["found"] == 2


def test_more_pairs_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lopa_lab.bench.prefix.CANDIDATES", 40)
    result = bench("prefix", "--shared", "32", "--requests", "1", "--problems", "100000")
    assert result.exit_code == 2
    assert "ask for fewer" in result.output
