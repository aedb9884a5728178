"""What is said of devices that nothing has run on, and the record of what has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from lopa_ray.execution.device import DEVICES
from record import gpu_run
from record.gpu_run import OutcomeRecorder, as_markdown
from support.paths import ROOT


def test_a_device_is_tested_when_a_run_on_it_is_recorded() -> None:
    none_yet = "**None.**" in (ROOT / "tests" / "gpu" / "LAST_RUN.md").read_text(encoding="utf-8")
    assert {name: device.tested for name, device in DEVICES.items()} == {
        "cpu": True,
        "cuda": not none_yet,
        "npu": False,
    }


def report(
    name: str,
    outcome: Literal["passed", "failed", "skipped"],
    longrepr: Any = None,
    *,
    when: Literal["setup", "call", "teardown"] = "call",
) -> pytest.TestReport:
    return pytest.TestReport(
        f"tests/gpu/test_x.py::{name}",
        ("tests/gpu/test_x.py", 1, name),
        {},
        outcome,
        longrepr,
        when,
        user_properties=[("bf16, 4 branches", 12.34)] if name == "a" else (),
    )


def test_a_record_says_what_became_of_each_test() -> None:
    recorder = OutcomeRecorder()
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="assert 1 == 2 | 3\nand more"))
    for each in (
        *(report(name, "passed", when="setup") for name in "ab"),
        report("a", "passed"),
        report("b", "failed", crash),
        report("c", "skipped", ("x.py", 3, "Skipped: needs two GPUs"), when="setup"),
        *(report(name, "passed", when="teardown") for name in "abc"),
    ):
        recorder.pytest_runtest_logreport(each)
    text = as_markdown(recorder, "2026-01-01, a GPU.", 61.5)
    assert "1 passed, 1 failed, 1 skipped in 62 s." in text
    assert "| bf16, 4 branches | 12.3 |" in text
    assert "| `gpu/test_x.py::b` | **failed**: assert 1 == 2 ¦ 3 |" in text
    assert "| `gpu/test_x.py::c` | skipped: needs two GPUs |" in text


def test_without_a_gpu_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_run, "RECORD", tmp_path / "LAST_RUN.md")
    monkeypatch.setattr(gpu_run.torch.cuda, "is_available", lambda: False)
    assert gpu_run.main() == 1
    assert "nothing is recorded" in capsys.readouterr().err and not list(tmp_path.iterdir())
