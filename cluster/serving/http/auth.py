"""API keys: where they come from, and whether a request has one."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from pydantic import SecretStr

from cluster.openai.errors import ApiError
from lopa_ray.errors import SettingsError

API_KEYS_VARIABLE = "LOPA_API_KEYS"


def load_api_keys(path: str | None, environ: Mapping[str, str]) -> list[str]:
    """Keys from a file (one per line, # begins a comment) and from LOPA_API_KEYS (with commas between).

    Raises SettingsError if the file cannot be read, or if one of the two is given but has no key:
    served without keys, everybody could come in.
    """
    keys: list[str] = []
    if path is not None:
        try:
            lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read the file of API keys {path}: {type(error).__name__}") from None
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


def check_api_key(header: str | None, keys: Sequence[SecretStr]) -> None:
    """`header` is the request's Authorization. Raises ApiError (401) unless it bears one of the keys.

    Takes the same time for every wrong key.
    """
    if not keys:
        return
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("got no API key; send one as 'Authorization: Bearer KEY'")
    digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
    # A list, not a generator: every key is compared, whichever matches.
    matches = [hmac.compare_digest(digest, sha256(key.get_secret_value().encode()).digest()) for key in keys]
    if not any(matches):
        raise _unauthorized("got an API key that is not valid here; ask the operator of this server for one")


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
