"""Run the notebooks of examples/notebooks, and store their outputs in them.

PYTHONPATH=.:tests python tests/record/notebooks.py
"""

from __future__ import annotations

import os

import nbformat
from nbclient import NotebookClient

from support.paths import ROOT
from support.processes import subprocess_environment


def main() -> None:
    """Run each from its first cell on a kernel of its own; an error of a cell is raised."""
    os.environ.update(subprocess_environment())
    for path in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
        for cell in notebook.cells:
            if cell.cell_type == "code":  # warnings name folders of the machine
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        # The kernel adds the version of Python here.
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
