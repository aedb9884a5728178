"""How the endpoint is served."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SecretStr, field_validator

from lopa_ray.strict import Strict


class HttpSettings(Strict):
    """What the HTTP layer allows."""

    api_keys: list[SecretStr] = Field(default_factory=list, repr=False)
    """A request under /v1 needs one of these as its bearer token; none: no key is needed."""

    cors_origins: list[str] = Field(default_factory=list)
    """Web pages of these origins may call the endpoint from a browser; "*" is all of them."""

    max_body_bytes: int = Field(default=4 * 2**20, ge=1)
    """Longest request body."""

    max_choices: int = Field(default=16, ge=1)
    """Most choices of a request: `n` times the number of prompts."""

    max_stop: int = Field(default=4, ge=0)
    """Most stop strings of a request."""

    retry_after_s: int = Field(default=1, ge=1)
    """Seconds that 429 and 503 tell clients to wait (`Retry-After`)."""

    @field_validator("api_keys", mode="before")
    @classmethod
    def _secrets(cls, value: Any) -> Any:
        # Checked by hand, since a refused value shows in the error.
        if not isinstance(value, list):
            raise ValueError(f"got {type(value).__name__}; allowed: a list of texts")
        for at, key in enumerate(value):
            text = key.get_secret_value() if isinstance(key, SecretStr) else key
            if (
                not isinstance(text, str)
                or not text
                or not text.isascii()
                or not text.isprintable()
                or " " in text
            ):
                raise ValueError(f"key {at} is no key; allowed: printable ASCII characters without spaces")
        return [key if isinstance(key, SecretStr) else SecretStr(key) for key in value]
