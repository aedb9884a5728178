"""Commands that measure a server, run as their users run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 240.0


def run_command(folder: Path, module: str, *options: str, **environment: str) -> None:
    """Run `python -m module` in a folder, without the Hugging Face hub. It has to succeed."""
    # What it caches goes into the folder too.
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hugging-face")}
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=folder,
        env={**os.environ, **offline, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
