"""Reading JSON files of a checkpoint, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.text_input import read_text

LARGEST_BYTES = 2**28  # of a JSON file or a template


def check_file(path: Path) -> None:
    """Raise `CheckpointError` for what would block its reader or never end: a pipe, a device, a file that is too large.
    A file that does not exist is for its reader to report."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: this is not a regular file; put the checkpoint's own file there")
    if path.exists() and path.stat().st_size > LARGEST_BYTES:
        raise CheckpointError(
            f"{path}: got {path.stat().st_size} bytes; allowed: {LARGEST_BYTES}; download it again"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises `CheckpointError` if it is missing, unreadable or not an object."""
    check_file(path)
    try:
        # Published files are read as leniently as transformers reads them.
        value = json.loads(read_text(path))
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
