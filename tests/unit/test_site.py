"""What the site is made of: figures that their command draws, settings and names that none is missing from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.settings import ModelEntry, ServeSettings
from lopa_ray.config.decision_settings import DecisionSettings
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.config.scaling_settings import ScalingSettings
from lopa_ray.decoding.decoders import DECODERS
from support.paths import ROOT

FOUND_FIRST = {
    "Grafana": "recipes/#prometheus-and-grafana",
    "own decoder": "own_decoder/",
    "add a decoder": "own_decoder/",
    "8 GPUs": "recipes/#llada-on-8-gpus",
    "two nodes": "recipes/#two-nodes",
    "nginx": "recipes/#behind-nginx",
    "LiteLLM": "recipes/#behind-a-litellm-gateway-anthropics-api-keys-limits",
    "Docker": "recipes/#docker",
}
"""What a reader searches for, and where the site's search has to lead first."""

pytestmark = pytest.mark.medium


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of the modules that make pages and figures can be imported from."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs/_site"), *sys.path])


def shape(image: str) -> str:
    """An image without its coordinates, which change with the version of matplotlib."""
    return re.sub(r"-?\d+(\.\d+)?", "", "".join(re.findall(r"<text.*?</text>", image, re.DOTALL)))


@pytest.mark.usefixtures("site")
def test_figures_are_drawn_from_the_kept_decodes_and_the_tables_of_pages() -> None:
    """From tables to the last coordinate, with the matplotlib of constraints.txt: their file changes with them."""
    pytest.importorskip("matplotlib")
    import decode_figures
    import page_figures

    kept = json.loads(decode_figures.DECODES.read_text(encoding="utf-8"))
    for name, draw in decode_figures.DRAWN.items():
        assert shape(draw(kept)) == shape((decode_figures.FIGURES / name).read_text(encoding="utf-8")), name
    for name, draw in page_figures.DRAWN.items():
        assert draw() == (page_figures.FIGURES / name).read_text(encoding="utf-8"), name


@pytest.mark.usefixtures("site")
def test_the_kept_decodes_are_those_of_the_model() -> None:
    import decode_figures

    kept = json.loads(decode_figures.DECODES.read_text(encoding="utf-8"))
    decoded = decode_figures.decodes()
    assert decoded["problem"] == kept["problem"]
    for name in decode_figures.DECODERS:
        assert decoded[name]["tokens"] == kept[name]["tokens"]
        for step, other in zip(decoded[name]["steps"], kept[name]["steps"], strict=True):
            assert step["decided"] == other["decided"]
            assert step["winner"] == other["winner"]
            assert step["confidences"] == pytest.approx(other["confidences"], abs=0.002)
    assert decoded["verified"] == kept["verified"]
    rule_steps = [decided for forward in kept["verified"]["forwards"] for decided in forward]
    assert rule_steps == kept["verified"]["one branch"]


@pytest.mark.usefixtures("site")
def test_the_page_of_settings_has_all_of_them() -> None:
    from settings_page import settings_page

    page = settings_page()
    served = (ServeSettings, ModelEntry, HttpSettings)
    decoders = [decoder.settings for decoder in DECODERS.values()]
    for settings in (ModelSettings, GroupSettings, ScalingSettings, DecisionSettings, *decoders, *served):
        for name, field in settings.model_fields.items():
            assert f"| `{name}` |" in page
            assert name == "decoder" or field.description, f"{settings.__name__}.{name} has no description"


@pytest.mark.usefixtures("site")
def test_pages_of_names_have_all_of_them() -> None:
    import actors
    import lopa_ray
    from api_page import api_page, public_names, summary

    for package in (lopa_ray, actors):
        paths = dict(public_names(ROOT, package.__name__))
        assert set(package.__all__) - set(paths) <= {"__version__"}
        page = api_page(ROOT, package.__name__)
        for name, path in paths.items():
            assert len(summary(ROOT, path)) > 10, f"the table says nothing of {name}"
            assert f"| [`{name}`](#{path}) | {summary(ROOT, path)} |" in page
            assert f"::: {path}" in page


@pytest.mark.parametrize("name", DECODERS)
def test_the_table_of_decoders_says_whether_one_verifies_drafts(name: str) -> None:
    """Other pages refer to this column."""
    page = (ROOT / "docs/decoders.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"(?m)^\| `{name}` \|(.*)\|$", page)
    _, _, verified, _ = row.split(" | ")
    assert (verified in ("no", "–")) != DECODERS[name].verifies_drafts


@pytest.mark.slow
def test_the_search_finds_recipes() -> None:
    """In the site that `make docs` built, by the search of its pages, which Playwright's Node runs."""
    site = ROOT / "build" / "site"
    index = site / "search" / "search_index.json"
    pages = [ROOT / "mkdocs.yml", *(ROOT / "docs").glob("*.md")]
    if not index.exists() or index.stat().st_mtime < max(page.stat().st_mtime for page in pages):
        pytest.skip("needs a site of these pages: make docs")
    node = Path(pytest.importorskip("playwright").__file__).parent / "driver" / "node"
    done = subprocess.run(
        [node, ROOT / "tests" / "programs" / "site_search.mjs", site, *FOUND_FIRST],
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(FOUND_FIRST, done.stdout.split(), strict=True)) == FOUND_FIRST


def test_the_page_of_the_own_decoder_has_the_example() -> None:
    """Which tests run: `tests/unit/decoding/test_own_decoder.py`."""
    page = (ROOT / "docs" / "own_decoder.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "own_decoder.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```\n" in page
