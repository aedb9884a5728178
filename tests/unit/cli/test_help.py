"""What help shows of options, and what shells complete."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cluster.cli import app
from cluster.jobs.__main__ import app as jobs_app
from lopa_lab.cli import app as lab_app
from lopa_ray.config.yaml_files import presets
from lopa_ray.decoding.decoders import DECODERS

pytestmark = pytest.mark.medium

WIDE = {"COLUMNS": "200"}
NARROW = {"COLUMNS": "80"}


def commands_below(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_below(below, (*path, name))


@pytest.mark.slow
@pytest.mark.parametrize("application", [app, jobs_app, lab_app])
def test_help_names_every_option_whole_in_80_columns(application: typer.Typer) -> None:
    """No type stands behind flags, and nothing is cut."""
    paths = list(commands_below(typer.main.get_command(application)))
    shown = 0
    for path in paths:
        if path[:1] == ("eval",) and path[1:] in (("run",), ("ls",), ("validate",)):
            continue  # the harness's own help
        result = CliRunner().invoke(application, [*path, "--help"], env=NARROW)
        assert result.exit_code == 0, path
        assert "bool" not in result.stdout.lower(), path
        assert "…" not in result.stdout, path
        assert all(len(line) <= 80 for line in result.stdout.splitlines()), path
        shown += "--help " in result.stdout
    assert shown > len(paths) - 6


def test_paragraphs_of_help_are_broken_to_the_terminal_alone() -> None:
    wide = CliRunner().invoke(app, ["generate", "--help"], env=WIDE).stdout
    assert any("Without --config" in line and "ask for it." in line for line in wide.splitlines())


def completion(what: str, **variables: str) -> str:
    """What `lopa` answers to bash."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['lopa']; from lopa_ray.__main__ import main; main()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "_LOPA_COMPLETE": what, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def completions(line: str) -> list[str]:
    """For a line that ends at the cursor."""
    return completion("complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1)).split()


@pytest.mark.slow
def test_shells_complete_commands_options_and_values() -> None:
    assert completions("lopa ge") == ["generate"]
    assert completions("lopa generate --wat") == ["--watch"]
    assert completions("lopa generate --decoder d") == [name for name in DECODERS if name.startswith("d")]
    assert completions("lopa config --config models/") == [
        name for name in presets() if name.startswith("models/")
    ]


def test_completion_can_be_installed() -> None:
    assert "complete -o default -F _lopa_completion lopa" in completion("source_bash")
