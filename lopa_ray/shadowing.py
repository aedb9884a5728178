"""Folders and files of a user that Python imports in place of this project's packages of the same name.

Python looks for a package in the folder of the script and in PYTHONPATH first, so a folder `cluster` or `actors` there
shadows the installed package.
"""

from __future__ import annotations

import functools
import warnings
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("actors", "cluster", "lopa_lab")
"""The packages that are installed with this package; users have folders of such names too."""


def shadowed_packages() -> dict[str, Path]:
    """The folders or files that Python imports in place of such packages, by the package's name."""
    installed = Path(__file__).resolve().parents[1]
    places = {name: _place(name) for name in PACKAGES if (installed / name).is_dir()}
    return {name: place for name, place in places.items() if place and place != installed / name}


def _place(name: str) -> Path | None:
    spec = find_spec(name)
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    place = next(iter(folders), None) if folders is not None else spec.origin
    return Path(place).resolve() if place else None


def _message() -> str:
    shadowed = [
        f"{place} shadows the package {name!r} of lopa-ray" for name, place in shadowed_packages().items()
    ]
    if not shadowed:
        return ""
    return (
        f"{'; '.join(shadowed)}: Python finds it first. "
        "Rename it, or run from a script and with a PYTHONPATH outside of its folder"
    )


def refuse_shadowed_packages() -> None:
    """Raises ImportError if something shadows a package of this project."""
    if message := _message():
        raise ImportError(message)


@functools.cache
def warn_of_shadowed_packages() -> None:
    """Warn once if something shadows a package of this project: decoding in one process works without these."""
    if message := _message():
        warnings.warn(message, RuntimeWarning, stacklevel=3)
