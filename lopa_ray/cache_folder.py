"""`cache_folder`: where this package keeps what is made once per machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """`lopa-ray` in the user's cache folder, which XDG_CACHE_HOME moves; for a user without a home, as in containers
    with an arbitrary uid, in the folder of temporary files. It may not exist yet, or not be writable."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(given) if given else Path.home() / ".cache"
    except RuntimeError:  # no home can be found
        base = Path(tempfile.gettempdir())
    return base / "lopa-ray"
