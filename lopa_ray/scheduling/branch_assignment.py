"""BranchAssignment: which worker evaluates which branch of a step, and how large the step becomes. It does no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from lopa_ray.protocol.plan import Plan, StoredPrefix


class BranchAssignment:
    """The rows of each worker in one step, as requests are added to it."""

    def __init__(self, num_workers: int, max_rows: int | None = None) -> None:
        """No worker gets more than `max_rows` rows, unless a single request has more. None: there is no limit."""
        self._load = [0] * num_workers
        self._max_rows = max_rows
        self._empty = True

    @property
    def rows(self) -> int:
        """Rows of the worker that has most."""
        return max(self._load, default=0)

    def add(self, plan: Plan, stored_prefix: Sequence[StoredPrefix]) -> dict[int, int] | None:
        """Assign each branch to the worker with the fewest rows so far; of equal workers, to the lowest rank.

        Returns branch → rank of the worker, or None if the step would be too large with this request in it.
        """
        load, ranks = [*self._load], {}
        stored = sum(len(part.span) for part in stored_prefix)
        for index, branch in enumerate(plan.branches):
            rank = load.index(min(load))
            load[rank] += branch.stop - plan.start - stored
            ranks[index] = rank
        return ranks if self._accept(load) else None

    def add_replay(self, plan: Plan) -> bool:
        """Every worker evaluates one branch of a plan that is carried out again. Returns whether the step has room."""
        rows = max((branch.stop - plan.start for branch in plan.branches), default=0)
        return self._accept([load + rows for load in self._load])

    def _accept(self, load: list[int]) -> bool:
        if self._max_rows is not None and not self._empty and max(load, default=0) > self._max_rows:
            return False
        self._load, self._empty = load, False
        return True
