"""Reading JSON files of a checkpoint, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises `CheckpointError` if it is missing, unreadable or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file; the named checkpoint or adapter needs it: name another folder or "
            "repository, or add the file"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: got a JSON {type(value).__name__}, need an object; download it again")
    return value
