"""What is said of devices that nothing has run on, and the record of what has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lopa_ray.errors import SettingsError
from lopa_ray.execution import device
from lopa_ray.execution.device import DEVICES
from support.paths import ROOT


def test_a_device_is_tested_when_a_run_on_it_is_recorded() -> None:
    none_yet = "**None.**" in (ROOT / "tests" / "gpu" / "LAST_RUN.md").read_text(encoding="utf-8")
    assert {name: device.tested for name, device in DEVICES.items()} == {
        "cpu": True,
        "cuda": not none_yet,
        "npu": False,
    }


def test_where_torch_finds_no_gpu_the_error_names_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device, "_DRIVER_VERSION", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for driver in "not loaded", "570.86.15":
        with pytest.raises(
            SettingsError, match=rf"finds no GPU, and the driver is {driver};.*model\.device: cpu"
        ):
            DEVICES["cuda"].torch_device()
        (tmp_path / "version").write_text("NVRM version: Open Kernel Module for x86_64  570.86.15  Release")


def test_cudnn_is_no_choice_for_attention_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    try:
        DEVICES["cuda"].torch_device()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
