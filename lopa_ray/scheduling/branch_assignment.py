"""BranchAssignment: which worker evaluates which branch of a step, and how large the step becomes. It does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lopa_ray.protocol.plan import Plan, StoredPrefix


class BranchAssignment:
    """The rows of each worker in one step, as requests are added to it."""

    def __init__(self, num_workers: int, max_rows: float) -> None:
        """No worker gets more than `max_rows` rows, unless a single branch has more."""
        self.load = [0] * num_workers
        """Rows of each worker."""
        self.lanes = [0] * num_workers
        """Branches of each worker."""
        self._max_rows = max_rows
        self.branch_rows = 0

    @property
    def rows(self) -> int:
        """Maximum over the workers."""
        return max(self.load, default=0)

    def add(
        self, plan: Plan, branches: Iterable[int], stored_prefix: Sequence[StoredPrefix]
    ) -> dict[int, int] | None:
        """Assign these branches of a plan, each to the worker with the fewest rows so far (of equal ones the lowest
        rank). Returns branch → rank, or None if the step would be too large with all of them."""
        stored = sum(len(part.span) for part in stored_prefix)
        load, lanes, ranks = [*self.load], [*self.lanes], {}
        for index in branches:
            rank = load.index(min(load))
            load[rank] += plan.branches[index].stop - plan.start - stored
            lanes[rank] += 1
            ranks[index] = rank
        longest = max((plan.branches[index].stop for index in ranks), default=0) - plan.start - stored
        return ranks if self._accept(load, lanes, longest) else None

    def add_part(self, plan: Plan, branches: Iterable[int], room: float) -> dict[int, int] | None:
        """Assign as many of these branches as a step of `room` rows takes. Returns as `add`; None: there is room for
        none."""
        ranks: dict[int, int] = {}
        for index in branches:
            rank = self.load.index(min(self.load))
            load, lanes = [*self.load], [*self.lanes]
            rows = plan.branches[index].stop - plan.start
            load[rank] += rows
            lanes[rank] += 1
            if (ranks and max(load) > room) or not self._accept(load, lanes, rows):
                break
            ranks[index] = rank
        return ranks or None

    def add_replay(self, plan: Plan) -> bool:
        """Every worker evaluates one branch of a plan that is carried out again. Returns whether the step has room."""
        rows = max((branch.stop - plan.start for branch in plan.branches), default=0)
        return self._accept([load + rows for load in self.load], [lanes + 1 for lanes in self.lanes], rows)

    def _accept(self, load: list[int], lanes: list[int], longest: int) -> bool:
        if max(load, default=0) > self._max_rows and max(lanes, default=0) > 1:
            return False
        self.load, self.lanes = load, lanes
        self.branch_rows = max(self.branch_rows, longest)
        return True
