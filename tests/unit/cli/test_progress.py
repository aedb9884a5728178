"""What a terminal shows of a command's progress, and that a pipe gets none of it."""

from __future__ import annotations

import io
import sys

import pytest

from cluster.batch.open_engine import open_engine
from cluster.command_line.progress import ShownTask
from lopa_ray.engine.config import Config
from support.terminal import run_in_terminal, stderr_terminal
from support.verified_decode import PROBLEM


def test_a_task_is_shown_with_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr_terminal(monkeypatch, 80)
    with ShownTask("Decoding", 3, "problems") as task:
        assert task.visible
        task.advance()
        task.describe("Grading")
        with ShownTask("Loading demo") as inner:
            inner.say("2 workers ready")
        task.move_to(3)
        task.describe("Done")
    lines = [line.rstrip() for line in terminal.text().replace("\r", "\n").splitlines()]
    for doing, count in (("Decoding", 0), ("Grading", 1), ("Done", 3)):
        assert any(doing in line and line.endswith(f"{count} of 3 problems") for line in lines)
    assert terminal.text().index("Loading demo") < terminal.text().index("2 workers ready\n")


def test_a_pipe_gets_lines_that_are_said_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in CI
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with ShownTask("Decoding", 3, "problems") as task:
        task.advance()
        task.describe("Grading")
        assert not task.visible
        task.say("line 2: [red]")
    assert "line 2: [red]" in pipe.getvalue()
    assert "Grading" not in pipe.getvalue() and "Decoding" not in pipe.getvalue()


def test_an_engine_of_this_process_says_that_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr_terminal(monkeypatch, 80)
    with open_engine(Config.load("demo"), local=True):
        assert "Loading demo" in terminal.text()


def test_a_group_says_what_it_waits_for_and_that_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        num_workers = 2

        @classmethod
        def from_config(cls, config: Config, *, on_phase: object) -> Group:
            assert callable(on_phase)
            on_phase("Starting Ray")
            on_phase("Loading demo on 2 workers")
            return cls()

        def close(self) -> None:
            pass

    monkeypatch.setattr("actors.engine.RayEngine", Group)
    terminal = stderr_terminal(monkeypatch, 80)
    with open_engine(Config.load("demo"), local=False):
        shown = terminal.text()
    order = [
        shown.index(words) for words in ("Starting Ray", "Loading demo on 2", "2 workers ready after 0 s")
    ]
    assert order == sorted(order)


def shown_lines(columns: int, *options: str) -> list[str]:
    command = [sys.executable, "-m", "cluster.cli", "generate", "-n", "32", *options, PROBLEM]
    return [line.rstrip() for line in run_in_terminal(command, columns).replace("\r", "\n").splitlines()]


@pytest.mark.medium
def test_a_command_in_a_terminal() -> None:
    lines = shown_lines(40)
    assert any("Loading demo" in line for line in lines)
    assert any("Decoding" in line and "of 32" in line for line in lines)
    assert any(line.startswith("TPF") for line in lines)


@pytest.mark.medium
def test_a_watched_command_keeps_a_line_per_step() -> None:
    lines = shown_lines(80, "--watch")
    (steps,) = (int(line.split()[1]) for line in lines if line.startswith("steps"))
    kept = [line for line in lines if line.startswith("step ") and " token" in line]
    assert [int(line.split()[1]) for line in kept] == [*range(1, steps + 1)]
    assert any(line.startswith("╭─ step 1 ") for line in lines)
