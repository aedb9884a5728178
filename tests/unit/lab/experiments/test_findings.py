"""The page of findings is what the records in the repository say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from lopa_lab.experiments.run.experiment import ExperimentRecord
from support.paths import ROOT

pytestmark = pytest.mark.medium

RECORDS = ROOT / "benchmarks/experiments"
PAGE = ROOT / "docs/findings.md"


def words(image: str) -> list[str]:
    """The words of a plot; numbers change with the version of matplotlib."""
    return [word for word in re.findall(r"<text[^>]*>([^<]*)</text>", image) if not re.search(r"\d", word)]


def test_the_page_is_made_of_the_records(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "findings.md"
    done = CliRunner().invoke(app, ["experiment", "report", str(RECORDS), "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    drawn = {path.name: words(path.read_text(encoding="utf-8")) for path in (tmp_path / "figures").iterdir()}
    kept = {
        path.name: words(path.read_text(encoding="utf-8"))
        for path in (ROOT / "docs/figures").glob("experiment-*.svg")
    }
    assert drawn == kept


def test_records_name_command_and_machine() -> None:
    for path in RECORDS.glob("*.json"):
        record = ExperimentRecord.read(path)
        assert record.name == path.stem
        assert record.command_line.startswith(f"lopa experiment {path.stem}")
        assert record.commit is not None and not record.commit.endswith("+changes")
        assert path.stat().st_size < 200_000, "records stay small"


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["experiment", "report", str(tmp_path), "--page", str(tmp_path / "a.md")])
    assert done.exit_code == 2 and "has no records" in " ".join(done.output.split())
    assert not (tmp_path / "a.md").exists()


def test_a_page_says_what_its_records_are_of(tmp_path: Path) -> None:
    """Records of other models, or of two versions of one, are not taken for those of the model in the package."""
    pytest.importorskip("matplotlib")
    records = [ExperimentRecord.read(path) for path in sorted(RECORDS.glob("*.json"))[:2]]
    page = tmp_path / "findings.md"

    def written(**setup: str) -> str:
        changed = records[0].model_copy(update={"setup": records[0].setup.model_copy(update=setup)})
        for each in (changed, records[1]):
            each.write(tmp_path / f"{each.name}.json")
        done = CliRunner().invoke(app, ["experiment", "report", str(tmp_path), "--page", str(page)])
        assert done.exit_code == 0, done.output
        return page.read_text(encoding="utf-8")

    same, other = written(), written(model="org/large@0123456")
    mixed = written(weights="other")
    assert "the model in the package, whose" in same and "different weights" not in same
    assert "the model in the package, whose" not in other and "org/large@0123456" in other
    assert "different weights" in mixed
