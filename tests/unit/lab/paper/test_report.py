"""Reports of a run: what they say, and that every form of them says it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from rich.console import Console
from rich.table import Table

from lopa_lab.paper.reports.comparison import Comparison, ComparisonRow, write_comparison
from lopa_lab.paper.reports.measures import INTERVAL, MEASURES, PUBLISHED, definitions
from lopa_lab.paper.reports.plots import fills_plot
from lopa_lab.paper.reports.report import summary_table, write_reports
from lopa_lab.paper.reports.report_content import Report
from lopa_lab.paper.reports.report_markdown import definitions_markdown
from lopa_lab.paper.reports.statistics import MeasuredValue
from lopa_ray.errors import SettingsError
from support.paper_records import make_record, make_run
from support.paths import ROOT

EVIL = '</pre><script>alert(1)</script> & "quoted" | ``` 100 % {{ 7 * 7 }}'
RECORDS = [
    make_record(0, text=EVIL, problem_id="a|b <i>"),
    make_record(1, tokens=40, scores={"exact_match": 0.0}),
    make_record(2, finish_reason="length", truncated_prompt=True),
]


def plain(text: str) -> str:
    """Words with one space between them, whatever was there."""
    return " ".join(text.split())


def printed(table: Table) -> str:
    """What a wide console shows."""
    console = Console(width=400, file=StringIO())
    console.print(table)
    return plain(console.file.getvalue())


class Page(HTMLParser):
    """Tags, what they ask for, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.text = plain(" ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")
        ]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def strict_json(path: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_json_says_what_was_run_and_found(tmp_path: Path) -> None:
    published = {"score": 73.8, "tpf": 10.1, "avg_tps": None}
    write_reports(tmp_path, make_run(), RECORDS, published=published, published_source="Table 1")
    report = strict_json(tmp_path / "report.json")
    assert report["schema_version"] == 1 and report["is_complete"] is True
    assert report["run"] == make_run().model_dump(mode="json")
    counts = {"decoded": 3, "of": 3, "graded": 3, "truncated_prompts": 1, "reached_length": 1}
    assert report["problems"] == counts
    score = report["scores"]["exact_match"]
    assert score["value"] == pytest.approx(200 / 3) and score["low"] < score["value"] < score["high"]
    assert (score["published"], score["unit"], score["count"]) == (73.8, "%", 3)
    assert [*report["figures"]] == [measure.name for measure in MEASURES]
    assert all(report["figures"][measure.name]["definition"] == measure.definition for measure in MEASURES)
    # The paper counts what is behind EOS, so its number is not that of `tpf`.
    assert report["figures"]["published_tpf"]["published"] == 10.1
    assert report["figures"]["tpf"]["published"] is None
    assert report["published_source"] == "Table 1"
    assert report["fills_per_step"]["count"] == [3, 3, 3, 3]
    assert EVIL not in (tmp_path / "report.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "records", [[], [make_record(scores=None, seconds=None, first_step_seconds=None)]], ids=["none", "bare"]
)
def test_what_cannot_be_said_is_null(tmp_path: Path, records: list) -> None:
    write_reports(tmp_path, make_run(), records)
    report = strict_json(tmp_path / "report.json")
    assert report["scores"]["exact_match"]["value"] is None
    assert report["figures"]["avg_tps"]["value"] is None
    assert report["is_complete"] is False
    for name in ("report.html", "report.md"):
        assert "nan" not in (tmp_path / name).read_text(encoding="utf-8").lower().split()


def test_html_escapes_what_models_write_and_asks_for_nothing(tmp_path: Path) -> None:
    write_reports(tmp_path, make_run(config_name="<b>name</b>", limit=2), RECORDS)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "script" not in page.tags and "b" in page.tags
    assert "<b>name" not in html and "<i>" not in html
    assert plain(EVIL) in page.text
    assert "a|b <i>" in page.text
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert "url(http" not in html and "@import" not in html
    assert page.tags.count("svg") == 4
    assert page.tags.count("details") == len(RECORDS)


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    run = make_run(limit=3, problems=1319)
    write_reports(tmp_path, run, RECORDS, published={"score": 73.8}, published_source="Table 1 of <it>")
    markdown = plain((tmp_path / "report.md").read_text(encoding="utf-8"))
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    report = Report.make(run, RECORDS, published={"score": 73.8})
    console = printed(summary_table(run, RECORDS, published={"score": 73.8}))
    assert "first 3 of 1,319 problems" in report.notes[0] and "not the benchmark" in report.notes[0]
    for text in (markdown, page, console):
        for row in report.rows:
            assert row.measure.title in text and row.value in text and plain(row.interval) in text
        assert all(note in text for note in report.notes)
        assert "73.8" in text and "3 of 1,319 problems" in text
    for text in (markdown, page):
        for fact in ("a/model@0123", "A CPU, 2 cores", "One GPU, Another GPU", "8.0 GiB", "2.9.0", "1.2.3"):
            assert fact in text
        assert "lopa eval paper gsm8k --output 'my results'" in text
        assert all(row.measure.definition in text for row in report.rows)
        assert "num_branches" in text and INTERVAL in text
    assert "Table 1 of <it>" in page and "Table 1 of &lt;it>" in markdown


@pytest.mark.parametrize(
    ("run", "records", "expected"),
    [
        ({}, RECORDS[:2], "The run is not complete: 2 of 3 problems are decoded."),
        ({"limit": 5, "problems": 9}, RECORDS, "The run is not complete: 3 of 5 problems are decoded."),
        ({}, [make_record(0, scores=None), *RECORDS[1:]], "1 answer is not graded"),
        ({}, RECORDS, "1 prompt lost the beginning"),
        ({}, RECORDS, "1 answer reached the length limit without EOS."),
        ({}, [make_record(0, steps=1), *RECORDS[1:]], "leave out 1 problem that took a single step"),
        (
            {"concurrency": 8},
            [make_record(i, seconds=None, first_step_seconds=None) for i in range(3)],
            "3 problems have no times, since other problems were in flight",
        ),
    ],
)
def test_notes_say_what_limits_the_figures(run: dict, records: list, expected: str) -> None:
    notes = Report.make(make_run(**run), records).notes
    assert [note for note in notes if expected in note]


def test_a_whole_run_needs_no_notes() -> None:
    report = Report.make(make_run(), [make_record(index) for index in range(3)])
    assert report.notes == () and report.is_complete


def test_an_unknown_published_number_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"got 'tps'; allowed: score, latency_s, tpf, avg_tps"):
        Report.make(make_run(), RECORDS, published={"tps": 1.0})


def test_published_names_are_those_of_the_tables() -> None:
    from lopa_lab.paper.tables.published import TABLE_METRICS

    assert {*PUBLISHED} == {*TABLE_METRICS}


def test_names_of_measures_are_unique() -> None:
    names = [definition.name for definition in definitions()]
    assert len({*names}) == len(names)


def test_the_documentation_has_these_definitions() -> None:
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    assert definitions_markdown() in text
    assert INTERVAL in plain(text)


def rows() -> list[ComparisonRow]:
    measured = ComparisonRow.of_run(
        {"row": "LoPA <1>", "task": "GSM8K"},
        Report.make(make_run(limit=3, problems=9), RECORDS),
        {"score": 73.8, "tpf": 10.1, "max_tps": None},
        "lopa-gsm8k",
    )
    missing = ComparisonRow({"row": "S12", "task": "GSM8K"}, {"avg_tps": 619.33}, not_run="needs 8 GPUs")
    return [measured, missing]


def test_comparison_has_measured_and_published_numbers_and_reasons(tmp_path: Path) -> None:
    plots = [("Fills <per> step", fills_plot({}))]
    comparison = write_comparison(tmp_path, "Table <1>", rows(), published_source="the paper", plots=plots)
    content = strict_json(tmp_path / "comparison.json")
    assert content["rows"][0]["measured"]["score"]["value"] == pytest.approx(200 / 3)
    assert content["rows"][0]["published"] == {"score": 73.8, "tpf": 10.1, "max_tps": None}
    assert content["rows"][1]["not_run"] == "needs 8 GPUs" and content["rows"][1]["measured"] == {}
    assert {*content["rows"][0]["measured"]} == {*content["definitions"]} == {*content["units"]}
    page = Page((tmp_path / "comparison.html").read_text(encoding="utf-8"))
    markdown = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    for text in (page.text, markdown.replace("&lt;", "<")):
        assert "Table <1>" in text and "LoPA <1>" in text
        assert "66.7 [" in text and "73.8" in text and "619.33" in text
        assert "not run: needs 8 GPUs" in text and "a/model@0123, gsm8k, 3 of 9 problems" in text
        for fact in ("a/model@0123", "A CPU, 2 cores", "2.9.0", "1.2.3"):  # model, machine, versions
            assert fact in text
    console = printed(comparison.as_table())
    assert "LoPA <1>" in console and "66.7" in console and "73.8" in console and "S12" not in console
    assert comparison.reasons == {"needs 8 GPUs": ["S12, GSM8K"]}
    assert (
        content["rows"][0]["run"]["model"] == "a/model@0123" and content["rows"][0]["folder"] == "lopa-gsm8k"
    )
    assert content["rows"][0]["fills_per_step"]["mean"] and content["rows"][1]["run"] is None
    assert 'href="lopa-gsm8k/report.html"' in (tmp_path / "comparison.html").read_text()
    for text in (page.text, markdown):
        assert "not the benchmark" in text and "Published numbers: the paper." in text
    assert "Fills <per> step" in page.text and page.tags.count("svg") == 1 and "script" not in page.tags


def test_comparison_shows_measures_with_published_numbers() -> None:
    assert [measure.name for measure in Comparison("", rows(), "").measures] == [
        *("score", "tpf", "published_tpf", "published_avg_tps"),
    ]


def test_an_empty_comparison(tmp_path: Path) -> None:
    write_comparison(tmp_path, "nothing", [])
    assert strict_json(tmp_path / "comparison.json")["rows"] == []


def test_rows_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="either estimates or a reason"):
        ComparisonRow({"row": "x"}, {})
    with pytest.raises(ValueError, match="either estimates or a reason"):
        ComparisonRow({"row": "x"}, {}, {"tpf": MeasuredValue(1, None, None, 1)}, not_run="no GPU")
    with pytest.raises(SettingsError, match="got 'speed'"):
        ComparisonRow({"row": "x"}, {"speed": 1.0}, not_run="no GPU")
    with pytest.raises(ValueError, match="different columns"):
        Comparison("", [*rows(), ComparisonRow({"model": "x"}, {}, not_run="no GPU")], "")
