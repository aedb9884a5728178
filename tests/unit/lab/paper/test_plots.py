"""Plots as SVG images, and the Markdown that shows them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from lopa_lab.paper.reports.plots import (
    branches_plot,
    fills_plot,
    latency_scatter,
    plots_markdown,
    tpf_histogram,
    tps_histogram,
)
from lopa_lab.paper.reports.statistics import MeasureResult, fills_per_step
from support.paper_records import make_record

RECORDS = [
    make_record(index, tokens=10 + index % 7, fills=(index % 3, 2, 1)[: 1 + index % 3], scores=scores)
    for index, scores in enumerate([{"exact_match": 1.0}, {"exact_match": 0.0}, None] * 10)
]
CURVE = fills_per_step(RECORDS)
POINTS = {
    4: (MeasureResult(6.0, 5.0, 7.0, 9), MeasureResult(72.0, None, None, 9)),
    1: (MeasureResult(3.0, 2.0, 4.0, 9), MeasureResult(78.5, 70.0, 81.0, 9)),
    2: (MeasureResult(5.0, 4.0, 6.0, 9), MeasureResult(None, None, None, 0)),
}

PLOTS: dict[str, tuple[Callable[[], str], list[str]]] = {
    "tpf": (
        lambda: tpf_histogram(RECORDS, "exact_match"),
        ["solved", "not solved", "not graded", "TPF of a problem (tokens/round)"],
    ),
    "tps": (lambda: tps_histogram(RECORDS), ["speed of a problem (tokens/s)"]),
    "fills": (
        lambda: fills_plot({"LoPA": CURVE, "D2F & $x$ <b>": CURVE}),
        ["LoPA", "D2F & $x$ <b>", "problems", "tokens decided"],
    ),
    "latency": (lambda: latency_scatter(RECORDS), ["latency (s)"]),
    "branches": (
        lambda: branches_plot(POINTS),
        ["TPF (tokens/round)", "score (%)", "score without lookahead: 78.5", "1", "2", "4"],
    ),
}


@pytest.mark.parametrize("name", PLOTS)
def test_is_well_formed_has_its_labels_and_is_always_the_same(name: str) -> None:
    draw, labels = PLOTS[name]
    svg = draw()
    assert svg == draw()
    root = ElementTree.fromstring(svg)
    texts = ["".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert not [label for label in labels if label not in texts]
    assert "currentColor" not in svg, "an image has no page to take the colour from"
    assert "http://www.w3.org/1999/02/22-rdf" not in svg, "metadata has dates and versions"


def test_nothing_to_draw() -> None:
    empty = fills_per_step([])
    for svg in (
        tpf_histogram([], "exact_match"),
        tps_histogram([make_record(seconds=None)]),
        fills_plot({"none": empty}),
        latency_scatter([]),
        branches_plot({}),
    ):
        assert svg.startswith("<svg")


def test_plots_are_files_that_the_text_shows(tmp_path: Path) -> None:
    text = plots_markdown(tmp_path, {"D2F & Dream, GSM8K": "<svg>1</svg>", "speed": "<svg>2</svg>"})
    assert "![D2F & Dream, GSM8K](plots/d2f-dream-gsm8k.svg)" in text and "(plots/speed.svg)" in text
    assert (tmp_path / "plots/d2f-dream-gsm8k.svg").read_text() == "<svg>1</svg>"
    assert plots_markdown(tmp_path, {}) == ""
