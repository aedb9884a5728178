"""StepLimit: the maximum of rows of a worker in one forward. The limit follows the measured time of steps, so that no
step keeps others waiting for long, and the memory of workers. A step that has more rows is computed in several
forwards, with the same reports, or its requests take turns."""

from __future__ import annotations

import math

from lopa_ray.errors import SettingsError

TARGET_S = 1.0  # seconds that a step should take at most
INITIAL_ROWS = 4096  # rows of a step as long as little is known of its time
MEMORY_FACTOR = 7 / 8  # how large steps may be after too large a step for the memory, as a part of that step
GROW_AFTER = 256  # after so many steps they may be larger again: the lack of memory may have passed
TRY_AFTER = 8  # after so many refusals for lack of memory, longer branches are tried again


class StepLimit:
    """Grows while steps are fast, and shrinks after a step that was slow or needed too much memory."""

    def __init__(self, bound: int | None = None) -> None:
        """`bound`: `model.max_num_batched_tokens`, in rows; None: there is no bound."""
        self._bound = math.inf if bound is None else bound
        self._by_time: float = INITIAL_ROWS
        self._free_rows = 0.0  # fewer rows would make a step hardly faster
        self._largest = 0
        self._failed_branch = 0  # rows of a branch that lacked memory, since when none as long has succeeded
        self._by_memory = self._branch_by_memory = math.inf  # the same after lacks of memory, at most
        self._steps_since_lack = self._refusals = 0

    @property
    def rows(self) -> int:
        """Maximum of rows of a worker in the next forward, unless a single branch has more."""
        return max(1, int(min(max(self._by_time, self._free_rows), self._by_memory, self._bound)))

    def check(self, rows: int) -> None:
        """Raises SettingsError for a branch that is too large for any forward here."""
        if rows > self._bound:
            bound, reason = self._bound, "model.max_num_batched_tokens"
        elif rows > self._branch_by_memory:
            bound, reason = self._branch_by_memory, "workers had too little memory for more"
            self._refusals += 1
            if self._refusals >= TRY_AFTER:
                self._grow()
        else:
            return
        raise SettingsError(
            f"a branch of this request has {rows} positions; allowed: at most {int(bound)} in one forward ({reason}); "
            "shorten the prompt, the answer or its blocks"
        )

    def record(self, rows: int, branch_rows: int, seconds: float, free_rows: float) -> None:
        """A step succeeded. `rows`: of a worker; `branch_rows`: of a branch at most; `free_rows`: see `StepCost`."""
        self._largest = max(self._largest, rows)
        if branch_rows >= self._failed_branch:
            self._failed_branch, self._branch_by_memory = 0, math.inf
        self._free_rows = min(free_rows, 2 * self._largest)
        if seconds > TARGET_S:
            # A single slow step may have had another reason, so the limit falls by half at most. As long as it is
            # unknown what rows cost, larger steps than this are tried.
            min_rows = self._by_time / 2 if free_rows else max(self._by_time / 2, 2 * rows)
            self._by_time = min(self._by_time, max(rows * TARGET_S / seconds, min_rows))
        elif seconds < TARGET_S / 2 and rows > self._by_time / 2:
            self._by_time *= 2
        self._steps_since_lack += 1
        if self._steps_since_lack >= GROW_AFTER:
            self._grow()

    def _grow(self) -> None:
        self._steps_since_lack = self._refusals = 0
        self._by_memory = self._by_memory / MEMORY_FACTOR + 1
        self._branch_by_memory = self._branch_by_memory / MEMORY_FACTOR + 1

    def record_lack(self, rows: int) -> None:
        """A step of `rows` rows on a worker, of several branches, needed more memory than there was."""
        self._steps_since_lack = 0
        self._by_memory = min(self._by_memory, rows * MEMORY_FACTOR)

    def refuse_branch(self, rows: int) -> None:
        """A branch of `rows` rows, alone on its worker, needed too much memory. After the second one in a row branches
        as long are refused: a single one may have had another reason."""
        self._steps_since_lack = self._refusals = 0
        if self._failed_branch:
            self._branch_by_memory = max(self._failed_branch, rows) - 1
        self._failed_branch = max(self._failed_branch, rows)
