"""Pages of reports in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from lopa_lab.paper.reports.comparison import ComparisonRow, write_comparison
from lopa_lab.paper.reports.plots import latency_scatter
from lopa_lab.paper.reports.report import write_reports
from support.paper_records import make_record, make_run

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

Browser = playwright.Browser
ANSWER = "<script>document.title = 'run'</script>" + "x" * 500
RECORDS = [make_record(index, text=ANSWER, tokens=10 + index) for index in range(12)]


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    report = write_reports(tmp_path, make_run(), RECORDS, published={"score": 73.8})
    rows = [
        ComparisonRow.of_run({"row": "a run with quite a long name"}, report, {"score": 73.8, "tpf": 10.1}),
        ComparisonRow({"row": "none"}, {"avg_tps": 600.0}, not_run="needs 8 GPUs"),
    ]
    write_comparison(tmp_path, "Table", rows, plots=[("Latency", latency_scatter(RECORDS))])
    return [tmp_path / "report.html", tmp_path / "comparison.html"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_ask_for_nothing_run_nothing_and_fit(browser: Browser, pages: list[Path], scheme: str) -> None:
    for path in pages:
        context = browser.new_context(color_scheme=scheme, viewport={"width": 400, "height": 800})
        page = context.new_page()
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("console", lambda message, said=said: said.append(message.text))
        page.goto(path.as_uri())
        for details in page.locator("summary").all():
            details.click()
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        assert said == [], "what the policy forbids is told on the console"
        assert page.title() != "run"
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        ink, paper = page.evaluate(
            "[document.querySelector('figure svg text'), document.body]"
            ".map((each, i) => getComputedStyle(each)[i ? 'backgroundColor' : 'fill'])"
        )
        dark = sum(map(int, paper[4:-1].split(",")[:3])) < 384
        assert dark == (scheme == "dark")
        assert (sum(map(int, ink[4:-1].split(",")[:3])) < 384) != dark, "text of plots has the page's colour"
        context.close()
