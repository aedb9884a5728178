"""The clock of a group's start."""

from __future__ import annotations

import pytest

from actors.group import start_phases
from actors.group.start_phases import StartPhases


def test_a_phase_ends_with_the_last_that_goes_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([100.0, 101.0, 103.0, 103.5, 110.0])
    monkeypatch.setattr(start_phases.time, "monotonic", lambda: next(moments))
    phases = StartPhases()
    assert phases.seconds == {}
    phases.end("workers")
    phases.end("workers")
    assert phases.seconds == {"workers": 3.0}
    phases.end("model")
    phases.end("join")
    assert phases.seconds == {"workers": 3.0, "model": 0.5, "join": 6.5}
