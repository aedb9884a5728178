"""Keys and limits of the HTTP layer."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, SecretStr, field_validator

from lopa_ray.config.strict import StrictModel


class HttpSettings(StrictModel):
    """Keys and limits of the HTTP layer."""

    api_keys: list[SecretStr] = Field(default_factory=list, repr=False)
    """A request needs one of these as its bearer token, but not for the playground, /docs, /health, /ping, /version and
    /metrics; none: no key is needed. /admin has `admin_keys`."""

    admin_keys: list[SecretStr] = Field(default_factory=list, repr=False)
    """The keys for /admin; none: any of `api_keys` changes the number of workers, and the rest is closed."""

    allowed_hosts: list[str] = Field(default_factory=list)
    """Names that `Host` may have without API keys, besides localhost and IP addresses; "*": all names. Where the list
    is empty, only connections to a loopback address are checked."""

    allowed_origins: list[str] = Field(default_factory=list)
    """Web pages of these origins (https://app.example) may call the server from a browser; "*": all pages. Without API
    keys, pages of other origins are refused."""

    max_body_bytes: int = Field(default=2**19, ge=1)
    """Maximum size of a request body, in bytes."""

    @field_validator("api_keys", "admin_keys", mode="before")
    @classmethod
    def _check_api_keys(cls, value: Any) -> Any:
        # Checked by hand, because pydantic's errors show the refused value.
        if not isinstance(value, list):
            raise ValueError(f"got {type(value).__name__}; allowed: a list of texts")
        keys = [key.get_secret_value() if isinstance(key, SecretStr) else key for key in value]
        for at, key in enumerate(keys):
            if not (isinstance(key, str) and re.fullmatch("[!-~]+", key)):
                raise ValueError(f"key {at} is not valid; allowed: printable ASCII characters without spaces")
        return [SecretStr(key) for key in keys]
