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
    """Several may hold at once. While a hold is drained for, requests that have begun go on, and no other begins."""

    def __init__(self) -> None:
        self.reached: set[Hold] = set()
        self.draining: set[Hold] = set()

    def add(self, reason: Hold, running: Running, *, have_begun: bool) -> None:
        """Raises SettingsError for another value of `running`, and for wait where another hold keeps requests that have
        begun from going on."""
        if running not in get_args(Running):
            allowed = ", ".join(get_args(Running))
            raise SettingsError(f"running: got {running!r}; allowed: {allowed}", setting="running")
        if running == "wait" and self.reached and have_begun:
            raise SettingsError(
                f"running: got 'wait' during {min(self.reached)}, in which requests that have begun do not go on; use "
                "keep or abort",
                setting="running",
            )
        (self.draining if running == "wait" else self.reached).add(reason)

    def is_reached(self, reason: Hold, *, have_begun: bool) -> bool:
        if reason in self.draining and not have_begun:
            self.draining.discard(reason)
            self.reached.add(reason)
        return reason in self.reached

    def remove(self, reason: Hold) -> None:
        self.reached.discard(reason)
        self.draining.discard(reason)
