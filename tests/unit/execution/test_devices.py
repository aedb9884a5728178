"""What is said of devices that nothing has run on, and the record of what has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from lopa_ray.errors import SettingsError
from lopa_ray.execution import device
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
        f"test_x.py::{name}",
        ("test_x.py", 1, name),
        {},
        outcome,
        longrepr,
        when,
        user_properties=[("bf16, 4 branches", 12.34)] if name == "a" else (),
    )


def test_a_record_says_what_became_of_each_test() -> None:
    recorder = OutcomeRecorder()
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="assert 1 == 2 | 3\nand more"))
    for outcome in (
        *(report(name, "passed", when="setup") for name in "ab"),
        report("a", "passed"),
        report("b", "failed", crash),
        report("c", "skipped", ("x.py", 3, "Skipped: needs two GPUs"), when="setup"),
        *(report(name, "passed", when="teardown") for name in "abc"),
    ):
        recorder.pytest_runtest_logreport(outcome)
    text = as_markdown(recorder, "2026-01-01, a GPU.", 61.5)
    assert "1 passed, 1 failed, 1 skipped in 62 s." in text
    assert "| bf16, 4 branches | 12.3 |" in text
    assert "| `test_x.py::b` | **failed**: assert 1 == 2 ¦ 3 |" in text
    assert "| `test_x.py::c` | skipped: needs two GPUs |" in text


def test_without_a_gpu_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_run, "RECORD", tmp_path / "LAST_RUN.md")
    monkeypatch.setattr(gpu_run.torch.cuda, "is_available", lambda: False)
    assert gpu_run.main() == 1
    assert "nothing was recorded" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_run_is_recorded_where_there_is_no_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_run, "RECORD", tmp_path / "LAST_RUN.md")
    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_run.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_run.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu_run.torch.cuda, "get_device_name", lambda index: "a GPU")

    def run(options: list[str], plugins: list[OutcomeRecorder]) -> int:
        plugins[0].pytest_runtest_logreport(report("a", "passed"))
        return 1

    monkeypatch.setattr(gpu_run.pytest, "main", run)
    assert gpu_run.main() == 1
    text = (tmp_path / "LAST_RUN.md").read_text()
    assert "a GPU, torch" in text and "commit unknown (FileNotFoundError" in text and "1 passed" in text


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        (None, None, "a build without CUDA) finds no GPU, and the driver is not loaded"),
        (
            "13.0",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May",
            "the driver is 535.183.01;",
        ),
        (
            "13.0",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
            "the driver is 570.86.15;",
        ),
        ("13.0", "something else", "the driver is of an unknown version"),
    ],
)
def test_where_torch_finds_no_gpu_the_error_names_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: str | None, driver: str | None, expected: str
) -> None:
    version = tmp_path / "version"
    if driver is not None:
        version.write_text(driver)
    monkeypatch.setattr(device, "_DRIVER_VERSION", version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match=r"model\.device: cpu") as error:
        DEVICES["cuda"].torch_device()
    assert expected in str(error.value)


def test_cudnn_is_no_choice_for_attention_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    try:
        DEVICES["cuda"].torch_device()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
