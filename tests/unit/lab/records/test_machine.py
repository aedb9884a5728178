"""What a run is said to have run on."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from lopa_lab.records.machine import Machine
from support.paths import ROOT


def test_this_machine() -> None:
    here = Machine.here()
    assert here.cpu
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert here.packages["torch"] == version("torch")
    assert here.accelerators == ()


def test_a_run_on_the_cpu_imports_no_torch() -> None:
    code = (
        "import sys; from lopa_lab.records.machine import Machine; Machine.here(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_accelerators_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert Machine.here("cuda").accelerators == ("GPU 0", "GPU 1")
