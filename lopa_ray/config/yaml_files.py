"""Configurations as YAML files: a user's own, and the presets of the package."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from lopa_ray.errors import SettingsError
from lopa_ray.text_input import read_text

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = _PACKAGE / "presets" / "configs"

# By its place: an import of the name `configs` would find a user's folder first.
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "configs"
"""The folder `configs`: inside an installed package, next to `lopa_ray` in a checkout."""

SERVE = "serve"  # the file of this name in the folder of presets is for Ray Serve

FOLDERS = ("models", "paper")
"""Folders of further presets, whose names begin with the folder's: `paper/s7` is `configs/paper/s7.yaml`."""


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number; to YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def parse_yaml(text: str) -> Any:
    """YAML → plain values. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


def presets() -> dict[str, Path]:
    """The configurations that ship with the package, by name (`demo`, `paper/s7`)."""
    by_name = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml")) if path.stem != SERVE}
    for folder in FOLDERS:
        paths = sorted((CONFIGS / folder).glob("*.yaml"), key=lambda path: _natural_key(path.stem))
        by_name |= {f"{folder}/{path.stem}": path for path in paths}
    return by_name


def _natural_key(name: str) -> str:
    """Sorts s2 before s10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(4), name)


def serve_config() -> Path:
    return CONFIGS / f"{SERVE}.yaml"


def read_config(source: str | Path) -> dict[str, Any]:
    """The values of a YAML file, or of the preset of that name. Raises SettingsError if there is none."""
    path = Path(source)
    if not path.is_file():
        path = presets().get(str(source), path)
    try:
        values = parse_yaml(read_text(path))
    except FileNotFoundError:
        raise SettingsError(f"no configuration {str(source)!r}; {_hint(str(source))}") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise SettingsError(f"{path}{line}: not YAML: {error.problem}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read configuration {path}: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"{path}: got {type(values).__name__}; allowed: a mapping with model, group, decode"
        )
    return values


def _hint(source: str) -> str:
    """The preset that was meant, else the presets of the folder that `source` begins with, else an overview."""
    names = list(presets())
    last = [name.rpartition("/")[2] for name in names]
    if close := get_close_matches(source, names, 1, 0.8) or get_close_matches(source, last, 1, 0.8):
        return f"did you mean {next(name for name in names if name.endswith(close[0]))}?"
    folder, slash, _ = source.partition("/")
    if slash and folder in FOLDERS:
        near = [name for name in names if name.startswith(f"{folder}/")]
    else:
        near = [name for name in names if "/" not in name] + [f"{folder}/..." for folder in FOLDERS]
    return f"give a YAML file or a preset ({', '.join(near)})"
