"""API keys: the file and the environment variable that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lopa_ray.errors import SettingsError
from lopa_ray.text_input import read_text

API_KEYS_VARIABLE = "LOPA_API_KEYS"


def load_api_keys(path: str | None, environ: Mapping[str, str]) -> list[str]:
    """Keys from a file (one per line, # begins a comment) and LOPA_API_KEYS (with commas between). Raises SettingsError
    if one of the two is given but has no key: served without keys, everybody could come in."""
    keys: list[str] = []
    if path is not None:
        try:
            lines = read_text(Path(path).expanduser()).splitlines()
        except OSError as error:
            raise SettingsError(f"cannot read the file of API keys {path}: {type(error).__name__}") from None
        except ValueError as error:
            raise SettingsError(f"cannot read the file of API keys {path}: {error}") from None
        keys += _require_keys([line.partition("#")[0] for line in lines], f"the file of API keys {path}")
    if API_KEYS_VARIABLE in environ:
        keys += _require_keys(
            environ[API_KEYS_VARIABLE].split(","), f"the environment variable {API_KEYS_VARIABLE}"
        )
    return list(dict.fromkeys(keys))


def _require_keys(entries: Sequence[str], where: str) -> list[str]:
    keys = [entry.strip() for entry in entries if entry.strip()]
    if not keys:
        raise SettingsError(f"{where} has no key; write one into it, or leave it out to serve without keys")
    return keys
