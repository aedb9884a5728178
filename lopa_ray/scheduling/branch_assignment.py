"""BranchAssignment: which worker evaluates which branch of a step, and how large the step becomes."""

from __future__ import annotations

from collections.abc import Mapping


class BranchAssignment:
    """The rows of each worker in one step, as requests are added to it."""

    def __init__(self, num_workers: int, max_rows: float) -> None:
        """No worker gets more than `max_rows` rows, unless a single branch has more."""
        self.load = [0] * num_workers  # rows of each worker
        self.lanes = [0] * num_workers  # branches of each worker
        self._max_rows = max_rows
        self.branch_rows = 0

    @property
    def rows(self) -> int:
        """Maximum over the workers."""
        return max(self.load, default=0)

    def add(self, branch_rows: Mapping[int, int], room: float | None = None) -> dict[int, int] | None:
        """Assign branches (branch → its rows), each to the worker with the fewest rows so far (of equal workers the
        lowest rank). Returns branch → rank, or None if the step would be too large with all of them. With `room` it
        assigns as many of them as a step of so many rows takes; None: not a single one."""
        load, lanes = [*self.load], [*self.lanes]
        ranks: dict[int, int] = {}
        for index, rows in branch_rows.items():
            rank = load.index(min(load))
            load[rank] += rows
            lanes[rank] += 1
            has_room = room is None or not ranks or max(load) <= room
            if not has_room or not self._fits(load, lanes):
                if room is None or not ranks:
                    return None
                load[rank] -= rows
                lanes[rank] -= 1
                break
            ranks[index] = rank
        self.load, self.lanes = load, lanes
        self.branch_rows = max([self.branch_rows, *(branch_rows[index] for index in ranks)])
        return ranks

    def add_replay(self, rows: int) -> bool:
        """Every worker evaluates one branch of `rows` rows once more. Returns whether the step has room."""
        load, lanes = [load + rows for load in self.load], [lanes + 1 for lanes in self.lanes]
        if not self._fits(load, lanes):
            return False
        self.load, self.lanes = load, lanes
        self.branch_rows = max(self.branch_rows, rows)
        return True

    def _fits(self, load: list[int], lanes: list[int]) -> bool:
        return max(load, default=0) <= self._max_rows or max(lanes, default=0) <= 1
