"""Holds: why a scheduler plans no step."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from lopa_ray.errors import SettingsError

Running: TypeAlias = Literal["wait", "abort", "keep"]
"""What becomes of requests that have begun when no further step is planned."""

Hold: TypeAlias = Literal["pause", "sleep", "update"]


def check_level(level: int) -> None:
    """Raise SettingsError for a level of `sleep` that is not one."""
    if level not in (1, 2):
        raise SettingsError(f"level: got {level!r}; allowed: 1, 2", setting="level")


class Holds:
    """Several may hold at once; while one is waited for, requests that have begun go on, and no other begins."""

    def __init__(self) -> None:
        self.reached: set[Hold] = set()
        self.awaited: Hold | None = None

    def __contains__(self, reason: Hold) -> bool:
        return reason in self.reached or reason == self.awaited

    def add(self, reason: Hold, running: Running, *, have_begun: bool) -> None:
        """Raises SettingsError for another value of `running`, and for wait where another hold keeps requests that have
        begun from going on."""
        if running not in get_args(Running):
            allowed = ", ".join(get_args(Running))
            raise SettingsError(f"running: got {running!r}; allowed: {allowed}", setting="running")
        if running != "wait":
            self.reached.add(reason)
        elif have_begun and self.reached:
            held = f"during {min(self.reached)}, in which requests that have begun do not go on"
            raise SettingsError(f"running: got 'wait' {held}; use keep or abort", setting="running")
        else:
            self.awaited = reason

    def remove(self, reason: Hold) -> None:
        self.reached.discard(reason)
        self.awaited = None if self.awaited == reason else self.awaited
