"""The notebooks in examples/notebooks run from the first cell to the last, and print what they promise."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.paths import ROOT
from support.processes import subprocess_environment

NOTEBOOKS = ROOT / "examples" / "notebooks"

PRINTED = {
    "add_a_metric": ["mean ", "median ", "tokens per forward", "solved"],
    "an_evaluation": [" 1 branches", " 8 branches", "solved"],
    "decode_and_watch": ["#### 27", "won", "tokens per forward"],
    "serve_and_ask": ["ready", "#### 35", "'tpf'", '"pens"', "stopped"],
}


def printed(notebook: nbformat.NotebookNode) -> str:
    """What all cells have printed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "decode_and_watch",
        *(
            pytest.param(path.stem, marks=pytest.mark.nightly)
            for path in sorted(NOTEBOOKS.glob("*.ipynb"))
            if path.stem != "decode_and_watch"
        ),
    ],
)
def test_a_notebook(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in subprocess_environment().items():
        monkeypatch.setitem(os.environ, variable, value)
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    for text in PRINTED[name]:
        assert text in printed(notebook)
