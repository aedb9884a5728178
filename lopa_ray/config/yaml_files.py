"""Configurations as YAML files: a user's own, and those that ship with the package."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from lopa_ray.errors import SettingsError

SERVE = "serve"
"""The one file beside the presets that is for Ray Serve."""


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number; to YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def parse_yaml(text: str) -> Any:
    """YAML → plain values. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


def presets() -> dict[str, Path]:
    """The configurations of decode groups that ship with the package, by name."""
    folder = Path(str(files("configs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.stem != SERVE}


def serve_config() -> Path:
    """The Ray Serve config that ships with the package."""
    return Path(str(files("configs"))) / f"{SERVE}.yaml"


def read_config(source: str | Path) -> dict[str, Any]:
    """The values of a YAML file, or of the preset of that name. Raises SettingsError if there is none."""
    path = Path(source)
    if not path.is_file():
        path = presets().get(str(source), path)
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"no configuration {str(source)!r}; give a YAML file or a preset ({', '.join(presets())})"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read configuration {path}: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"{path}: got {type(values).__name__}; allowed: a mapping with model, group, decode"
        )
    return values
