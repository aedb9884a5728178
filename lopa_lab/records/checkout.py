"""The checkout that the code runs from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def checkout_commit() -> str | None:
    """The commit of the checkout that this package lies in, with `+changes` if tracked files differ from it.

    None for an installed package, or without git.
    """
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    commit = _git(git, root, "rev-parse", "HEAD")
    changes = _git(git, root, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else commit + ("+changes" if changes else "")


def _git(git: str, root: Path, *arguments: str) -> str | None:
    """What git prints, or None if it fails: there is no commit yet, or it refuses the folder's owner."""
    done = subprocess.run([git, "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
