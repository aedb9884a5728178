"""ClientLimits: how many requests and tokens a client may use, told apart by its API key or else by its address."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from starlette.types import Scope

from cluster.openai.errors import ApiError
from cluster.serving.settings import HttpSettings

MAX_CLIENTS = 10_000
"""Clients that are kept; beyond it those that have used nothing lately are dropped."""


def client_of(scope: Scope) -> str:
    """Who sent a request: `key N`, the Nth of the configured keys, or `address A`. It never has a key itself."""
    named: str | None = scope.get("lopa.client")
    return named or f"address {(scope.get('client') or ('unknown',))[0]}"


class _Bucket:
    """Fills up evenly in `period_s` to `capacity`, and may be overdrawn."""

    def __init__(self, capacity: int, period_s: float, now: float) -> None:
        self._capacity, self._rate = capacity, capacity / period_s
        self._level, self._at = float(capacity), now

    def take(self, amount: float, now: float) -> None:
        self._level, self._at = self.level(now) - amount, now

    def level(self, now: float) -> float:
        return min(self._capacity, self._level + (now - self._at) * self._rate)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until there is `amount`."""
        return max(0.0, (amount - self.level(now)) / self._rate)

    def is_full(self, now: float) -> bool:
        return self.level(now) >= self._capacity


class ClientLimits:
    """The limits of `HttpSettings`, counted by this process."""

    def __init__(self, settings: HttpSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        limits = {
            "requests per minute": (settings.requests_per_minute, 60.0),
            "tokens per minute": (settings.tokens_per_minute, 60.0),
            "tokens per day": (settings.tokens_per_day, 86_400.0),
        }
        self._limits = {name: (most, period) for name, (most, period) in limits.items() if most is not None}
        self._clock = clock
        self._buckets: dict[str, dict[str, _Bucket]] = {}

    def admit(self, client: str) -> None:
        """Count a request. Raises ApiError (429), with the seconds to wait, if the client has used up a limit.

        Tokens are known when a request ends: a client with tokens left may have another request.
        """
        now, buckets = self._clock(), self._of(client)
        for name, bucket in buckets.items():
            # The smallest part of a token is enough.
            wait_s = bucket.wait_s(1.0 if name.startswith("requests") else 1e-6, now)
            if wait_s:
                message = (
                    f"this client has used its {self._limits[name][0]} {name}; wait for {math.ceil(wait_s)} s"
                )
                headers = {"Retry-After": str(math.ceil(wait_s))}
                raise ApiError(429, message, "rate_limit_exceeded", headers=headers)
        if "requests per minute" in buckets:
            buckets["requests per minute"].take(1, now)

    def charge(self, client: str, tokens: int) -> None:
        """A request of the client has ended, with so many tokens of prompt and answer."""
        for name, bucket in self._of(client).items():
            if name.startswith("tokens"):
                bucket.take(tokens, self._clock())

    def _of(self, client: str) -> dict[str, _Bucket]:
        now = self._clock()
        if client not in self._buckets:
            if len(self._buckets) >= MAX_CLIENTS:
                self._buckets = {
                    name: buckets
                    for name, buckets in self._buckets.items()
                    if not all(bucket.is_full(now) for bucket in buckets.values())
                }
            self._buckets[client] = {
                name: _Bucket(most, period, now) for name, (most, period) in self._limits.items()
            }
        return self._buckets[client]
