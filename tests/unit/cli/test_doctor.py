"""`lopa doctor`: each part of the machine in a line, and status 1 only where nothing can be decoded."""

from __future__ import annotations

import socket
from collections import namedtuple
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from typer.testing import CliRunner

from cluster.cli import app, doctor
from support.ports import free_port

Usage = namedtuple("Usage", "total used free")


def lines(*options: str, status: int = 0) -> dict[str, str]:
    """The part of a line → the rest of it."""
    result = CliRunner().invoke(app, ["doctor", *options])
    assert result.exit_code == status, result.output
    split = (line.split(maxsplit=2) for line in result.stdout.splitlines() if line.strip()[:1] in "✓!✗")
    return {f"{mark} {part}": rest for mark, part, rest in (words for words in split if len(words) == 3)}


def test_this_machine_decodes() -> None:
    shown = lines("--port", str(free_port()))
    assert shown["✓ torch"].strip() == torch.__version__
    assert "cores, memory of" in shown["✓ cpu"] and any(
        part.startswith(("✓ cuda", "! cuda")) for part in shown
    )
    assert " that lopa models lists fit on one " in " ".join(shown.values())


def test_what_is_missing_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "ray":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(1, 1, 1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        shown = lines("--port", str(listener.getsockname()[1]), status=1)
    assert (
        "not installed" in shown["✗ ray"]
        and "HF_HOME" in shown["! disk"]
        and "--shm-size" in shown["! shared"]
    )
    assert "lopa serve --port takes another" in shown["! port"]
