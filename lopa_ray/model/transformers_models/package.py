"""The package transformers, imported when it is first needed: by threads that may need it at the same moment."""

from __future__ import annotations

import importlib
import threading
from typing import Any

_lock = threading.Lock()


def import_transformers() -> Any:
    """The package, whole. At the end of its import it puts another module in its place, so a second thread's `import`
    statement would get one without classes. Call this before any such statement."""
    with _lock:
        return importlib.import_module("transformers")
