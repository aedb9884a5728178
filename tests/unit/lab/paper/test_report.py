"""Reports of a run: what they say, and that every form of them says it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from rich.console import Console
from rich.table import Table

from lopa_lab.paper.reports.measures import DEFINITIONS, INTERVAL, MEASURES
from lopa_lab.paper.reports.run_report import RunReport
from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.runs.run import FinishedRun
from lopa_lab.paper.tables.cell_comparison import CellComparison
from lopa_lab.paper.tables.cells import Cell
from lopa_lab.paper.tables.published import METRICS
from lopa_lab.paper.tables.run_cells import CellResult
from lopa_lab.records.markdown import table
from support.paper_records import make_record, make_run
from support.paths import ROOT

EVIL = '</pre><script>alert(1)</script> & "quoted" | 100 %\n```\n# no heading\n````'
RECORDS = [
    make_record(0, text=EVIL, problem_id="a|b <i>"),
    make_record(1, tokens=40, scores={"exact_match": 0.0}),
    make_record(2, finish_reason="length", truncated_prompt=True),
]


def make_report(folder: Path, records: list[ProblemRecord] = RECORDS, **changes: Any) -> RunReport:
    """Of a run in `folder`, which gets its files."""
    folder.mkdir(exist_ok=True)
    report = RunReport(FinishedRun(folder, make_run(**changes), tuple(records)))
    report.write()
    return report


def plain(text: str) -> str:
    """Words with one space between them, whatever was there."""
    return " ".join(text.split())


def printed(table: Table) -> str:
    """What a wide console shows."""
    console = Console(width=400, file=StringIO())
    console.print(table)
    return plain(console.file.getvalue())


def strict_json(path: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_json_says_what_was_run_and_found(tmp_path: Path) -> None:
    make_report(tmp_path)
    report = strict_json(tmp_path / "report.json")
    assert report["schema_version"] == 2 and report["is_complete"] is True
    assert report["run"] == make_run().model_dump(mode="json")
    counts = {"decoded": 3, "of": 3, "graded": 3, "truncated_prompts": 1, "reached_length": 1}
    assert report["problems"] == counts
    score = report["scores"]["exact_match"]
    assert score["value"] == pytest.approx(200 / 3) and score["low"] < score["value"] < score["high"]
    assert (score["unit"], score["count"]) == ("%", 3)
    assert [*report["figures"]] == [each.name for each in MEASURES]
    assert all(report["figures"][each.name]["definition"] == each.definition for each in MEASURES)
    assert report["fills_per_step"]["count"] == [3, 3, 3, 3]
    assert "script" not in (tmp_path / "report.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "records", [[], [make_record(scores=None, seconds=None, first_step_seconds=None)]], ids=["none", "bare"]
)
def test_what_cannot_be_said_is_null(tmp_path: Path, records: list) -> None:
    make_report(tmp_path, records)
    report = strict_json(tmp_path / "report.json")
    assert report["scores"]["exact_match"]["value"] is None
    assert report["figures"]["avg_tps"]["value"] is None
    assert report["is_complete"] is False
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert not {"nan", "None"} & {*text.split()}
    assert text.count("](plots/") == 2 * len(records), "without times there is no plot of speeds"


def test_markdown_has_every_answer_as_it_is(tmp_path: Path) -> None:
    make_report(tmp_path, config_name="<b>name</b>")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "<b>" not in text and "<i>" not in text
    assert f"### a\\|b &lt;i>\n\n`````\n{EVIL}\n`````" in text, "the fence is longer than those of the answer"
    assert text.count("\n### ") == len(RECORDS)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| problem/")]
    assert rows == [
        ["problem/1", "0", "40", "4", "10.00", "20.0", "2.000", "stop", "whole"],
        ["problem/2", "1", "10", "4", "2.50", "5.0", "2.000", "length", "truncated"],
    ]
    links = [line.rpartition("(")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len({*links}) == 4
    assert all((tmp_path / link).read_text(encoding="utf-8").startswith("<svg") for link in links)


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    report = make_report(tmp_path, limit=3, problems=1319)
    markdown = plain((tmp_path / "report.md").read_text(encoding="utf-8"))
    console = printed(report.as_table())
    figures = strict_json(tmp_path / "report.json")
    assert "first 3 of 1,319 problems" in report.notes[0] and "not the benchmark" in report.notes[0]
    for text in (markdown, console):
        for name, figure in {**figures["scores"], **figures["figures"]}.items():
            (measure,) = (each for each, _ in report.rows if each.name == name)
            assert measure.title in text and f"{figure['value']:,.{measure.digits}f}" in text
            assert f"{figure['low']:,.{measure.digits}f} to {figure['high']:,.{measure.digits}f}" in text
        assert all(note in text for note in report.notes)
        assert "3 of 1,319 problems" in text
    for fact in ("a/model@0123", "A CPU, 2 cores", "One GPU, Another GPU", "8.0 GiB", "2.9.0", "1.2.3"):
        assert fact in markdown
    assert "lopa eval paper gsm8k --output 'my results'" in markdown
    assert all(measure.definition in markdown for measure, _ in report.rows)
    assert "num_branches" in markdown and INTERVAL in markdown


@pytest.mark.parametrize(
    ("run", "records", "expected"),
    [
        ({}, RECORDS[:2], "The run is not complete: 2 of 3 problems are decoded."),
        ({"limit": 5, "problems": 9}, RECORDS, "The run is not complete: 3 of 5 problems are decoded."),
        ({}, [make_record(0, scores=None), *RECORDS[1:]], "1 answer is not graded"),
        ({}, RECORDS, "1 prompt lost the beginning"),
        ({}, RECORDS, "3 problems are too few: a score over them has a standard error of about "),
        ({}, RECORDS, "1 answer reached the length limit without EOS."),
        ({}, [make_record(0, steps=1), *RECORDS[1:]], "leave out 1 problem that took a single step"),
        (
            {"concurrency": 8},
            [make_record(i, seconds=None, first_step_seconds=None) for i in range(3)],
            "3 problems have no times, since other problems were in flight",
        ),
    ],
)
def test_notes_say_what_limits_the_figures(tmp_path: Path, run: dict, records: list, expected: str) -> None:
    notes = make_report(tmp_path, records, **run).notes
    assert [note for note in notes if expected in note]


def test_a_whole_run_needs_no_notes(tmp_path: Path) -> None:
    report = make_report(tmp_path, [make_record(index) for index in range(200)], problems=200)
    assert report.notes == [] and report.is_complete


def test_published_names_are_those_of_the_tables() -> None:
    assert {each.published_as for each in DEFINITIONS} - {None} == {*METRICS}


def test_names_of_measures_are_unique() -> None:
    names = [each.name for each in DEFINITIONS]
    assert len({*names}) == len(names)


def test_the_documentation_has_these_definitions() -> None:
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    rows = [[f"`{each.name}`", each.title, each.unit, each.definition] for each in DEFINITIONS]
    assert table(["in JSON", "figure", "unit", "definition"], rows) in text
    assert INTERVAL in plain(text)


def cell(row: str, **published: float | None) -> Cell:
    return Cell("fig4", row, "GSM8K", "gsm8k", "paper/s1", published=published)


def compare(folder: Path) -> CellComparison:
    """A cell that was run, one that was not, and one that was not and that the paper has no numbers of."""
    settings = {"decode": {"decoder": "lopa", "num_branches": 4}}
    report = make_report(folder / "lopa-gsm8k", limit=3, problems=9, settings=settings)
    return CellComparison(
        "Table <1>",
        [
            CellResult(
                cell("LoPA <1>", score=73.8, tpf=10.1, max_tps=None), "gsm8k", report, note="An old run."
            ),
            CellResult(cell("S12", avg_tps=619.33), "gsm8k", reason="needs 8 GPUs"),
            CellResult(cell("S13", score=None), "gsm8k", reason="needs 8 GPUs"),
        ],
        folder,
    )


def test_comparison_has_measured_and_published_numbers_and_reasons(tmp_path: Path) -> None:
    made = compare(tmp_path)
    made.write()
    found = strict_json(tmp_path / "comparison.json")
    run, missing, _ = found["rows"]
    assert run["labels"] == {"row": "LoPA <1>", "task": "GSM8K"} and run["folder"] == "lopa-gsm8k"
    assert run["measured"]["score"]["value"] == pytest.approx(200 / 3)
    assert run["published"] == {"score": 73.8, "tpf": 10.1, "max_tps": None}
    assert run["run"]["model"] == "a/model@0123" and run["fills_per_step"]["mean"]
    assert missing["not_run"] == "needs 8 GPUs" and missing["measured"] == {}
    assert missing["run"] is missing["folder"] is missing["fills_per_step"] is None
    assert {*run["measured"]} == {*found["definitions"]} == {*found["units"]}

    text = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert "# Table &lt;1>" in text and "LoPA &lt;1>" in text
    assert "66.7 [" in text and "73.8" in text and "619.33" in text
    assert "[a/model@0123, gsm8k, 3 of 9 problems](lopa-gsm8k/report.md)" in text
    assert "| not run: needs 8 GPUs |" in text and "- Not run: needs 8 GPUs (S12, GSM8K; S13, GSM8K)" in text
    assert "| S13 " not in text, "there is nothing to say of it"
    for fact in ("a/model@0123", "A CPU, 2 cores", "2.9.0", "1.2.3"):  # model, machine, versions
        assert fact in text
    # Notes of the run's own report, and of the cell's.
    assert "- All runs: This is not the benchmark" in text and "- All runs: An old run." in text
    assert (tmp_path / "plots/lopa-gsm8k.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "](plots/lopa-gsm8k.svg)" in text

    console = printed(made.as_table())
    assert "LoPA <1>" in console and "66.7" in console and "73.8" in console and "S12" not in console


def test_comparison_shows_measures_with_published_numbers(tmp_path: Path) -> None:
    # The paper counts what is behind EOS, so its number is not that of `tpf`.
    assert [each.name for each in compare(tmp_path).measures] == [
        *("score", "tpf", "published_tpf", "published_avg_tps"),
    ]


def test_a_comparison_without_runs(tmp_path: Path) -> None:
    CellComparison("nothing", [CellResult(cell("S13"), "gsm8k", reason="no GPU")], tmp_path).write()
    assert strict_json(tmp_path / "comparison.json")["rows"][0]["run"] is None
    assert "- Not run: no GPU (S13, GSM8K)" in (tmp_path / "comparison.md").read_text(encoding="utf-8")
