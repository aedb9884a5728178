"""What a run is said to have run on."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from lopa_lab.records import machine
from lopa_lab.records.machine import Machine, checkout_commit
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


def test_commit_of_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "lopa_lab/records/machine.py"))
    assert checkout_commit() is None

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert checkout_commit() is None
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    (tmp_path / "untracked").write_text("not part of it")
    assert checkout_commit() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert checkout_commit() == git("rev-parse", "HEAD") + "+changes"
