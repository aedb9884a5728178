"""The package transformers, imported when it is first needed: by threads that may need it at the same moment."""

from __future__ import annotations

import importlib
import threading
from typing import Any

_lock = threading.Lock()


def import_transformers() -> Any:
    """The package, whole. It puts another module in its place at the end of its import, so that a second thread's
    `import` statement gets one that has no classes yet. Call this before any such statement."""
    with _lock:
        return importlib.import_module("transformers")
