"""What the documents say was measured is what the records in `benchmarks/` say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lopa_lab.bench.measurements import BenchRecord, Row
from lopa_lab.bench.report import PAGE, RECORDS, write_report
from support.paths import ROOT

pytestmark = pytest.mark.medium

BENCHMARKS = ROOT / "benchmarks"


def rows_of(name: str) -> tuple[Row, ...]:
    return BenchRecord.read(BENCHMARKS / RECORDS / f"{name}.json").rows


def test_the_page_is_made_of_the_records(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shutil.copytree(BENCHMARKS / RECORDS, tmp_path / RECORDS)
    assert write_report(tmp_path).read_text() == (BENCHMARKS / PAGE).read_text()
    for image in (BENCHMARKS / "plots").iterdir():
        assert (tmp_path / "plots" / image.name).exists(), f"{image} is of no record"


def test_the_readme_has_the_figures_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text()
    decodes = [row for row in rows_of("decode-cpu") if f"`{row['decoder']}`" in readme]
    verified = [
        row for row in rows_of("lookahead-cpu") if (row["lookahead"], row["num_branches"]) == ("verified", 8)
    ]
    speculation = [row for row in rows_of("speculation-cpu") if row["num_branches"] == 8]
    assert len(decodes) == 7 and len(verified) == len(speculation) == 1
    for row in decodes + verified + speculation:
        forwards = f"{row['forwards per step']:.3g} | {row['TPS']:.0f}"
        assert f"| {row['solved %']:.0f} % | {row['TPF']:.2f} | {forwards} |" in readme, row
    steps = {(row["branches"], row["window"]): row["step ÷ plain"] for row in rows_of("forward-cpu")}
    assert f"{steps[9, 64]:.2f} times as long as a plain batched forward" in readme
    closed = {row["load"]: row for row in rows_of("serve-cpu") if row["loop"] == "closed"}
    for clients in (1, 16):
        assert f"{closed[clients]['tokens/s']:.0f} tokens/s" in readme
