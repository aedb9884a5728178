"""How the commands of the lab are found: by entry points where the project is installed, else as a module."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.command_line.command_app import ENTRY_POINT_GROUP
from lopa_lab.cli import COMMANDS
from support.paths import ROOT


def test_entry_points_name_the_commands() -> None:
    installed = {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINT_GROUP)}
    assert {name: installed[name] for name in COMMANDS} == COMMANDS


def test_lopa_lists_them() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert all(name in text for name in COMMANDS)


@pytest.mark.medium
def test_an_uploaded_checkout_has_them_without_being_installed(tmp_path: Path) -> None:
    """As in the working_dir of a job: the project's folders, in an interpreter that has the dependencies alone."""
    for name in ("lopa_ray", "actors", "cluster", "lopa_lab", "configs"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
        )
    without_project = (
        "import importlib.metadata, runpy, sys; "
        "sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in repr(finder)]; "
        "importlib.metadata.entry_points = lambda **_: (); "
        "sys.argv = ['lopa_lab', 'conformance', '--help']; "
        "runpy.run_module('lopa_lab.cli', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", without_project], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Replay recorded cases" in done.stdout
