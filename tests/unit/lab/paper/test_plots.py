"""Figures as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

pytest.importorskip("matplotlib")

from lopa_lab.paper.reports.plots import (
    BranchPoint,
    branches_plot,
    fills_plot,
    latency_scatter,
    tpf_histogram,
    tps_histogram,
)
from lopa_lab.paper.reports.statistics import MeasuredValue, fills_per_step
from support.paper_records import make_record

RECORDS = [
    make_record(index, tokens=10 + index % 7, fills=(index % 3, 2, 1)[: 1 + index % 3], scores=scores)
    for index, scores in enumerate([{"exact_match": 1.0}, {"exact_match": 0.0}, None] * 10)
]
CURVE = fills_per_step(RECORDS)
POINTS = [
    BranchPoint(4, MeasuredValue(6.0, 5.0, 7.0, 9), MeasuredValue(72.0, None, None, 9)),
    BranchPoint(1, MeasuredValue(3.0, 2.0, 4.0, 9), MeasuredValue(78.0, 70.0, 81.0, 9)),
    BranchPoint(2, MeasuredValue(5.0, 4.0, 6.0, 9), MeasuredValue(None, None, None, 0)),
]

PLOTS: dict[str, tuple[Callable[[], str], list[str]]] = {
    "tpf": (
        lambda: tpf_histogram(RECORDS, "exact_match"),
        ["solved", "not solved", "not graded", "TPF of a problem (tokens/round)"],
    ),
    "tps": (lambda: tps_histogram(RECORDS), ["speed of a problem (tokens/s)"]),
    "fills": (
        lambda: fills_plot({"LoPA": CURVE, "D2F & $x$ <b>": CURVE}),
        ["LoPA", "D2F & $x$ <b>", "step", "tokens decided"],
    ),
    "latency": (lambda: latency_scatter(RECORDS), ["latency (s)"]),
    "branches": (
        lambda: branches_plot(POINTS, baseline=78.5),
        ["TPF (tokens/round)", "score (%)", "score without lookahead: 78.5", "1", "2", "4"],
    ),
}


@pytest.mark.parametrize("name", PLOTS)
def test_is_well_formed_has_its_labels_and_is_always_the_same(name: str) -> None:
    draw, labels = PLOTS[name]
    svg = draw()
    assert svg == draw()
    root = ElementTree.fromstring(svg)
    texts = ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert not [label for label in labels if label not in texts]
    assert "currentColor" in svg
    assert "http://www.w3.org/1999/02/22-rdf" not in svg, "metadata has dates and versions"


def test_nothing_to_draw() -> None:
    empty = fills_per_step([])
    for svg in (
        tpf_histogram([], "exact_match"),
        tps_histogram([make_record(seconds=None)]),
        fills_plot({"none": empty}),
        latency_scatter([]),
        branches_plot([]),
    ):
        assert svg.startswith("<svg")


def test_ids_are_unique_within_a_page() -> None:
    page = ElementTree.fromstring("<page>" + "".join(draw() for draw, _ in PLOTS.values()) + "</page>")
    named: dict[str, str] = {}
    for element in page.iter():
        if "id" in element.attrib:
            # Markers and clipping paths are named by what they are, so two of a name are alike.
            text = ElementTree.tostring(element, encoding="unicode").strip()
            assert named.setdefault(element.attrib["id"], text) == text
