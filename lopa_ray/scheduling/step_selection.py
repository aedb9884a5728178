"""StepSelection: which requests take part in a step, and which worker evaluates which of their branches. It does no
I/O.

A step is for all requests in flight, for a suspect alone (see `Suspects`), or for as many as `StepLimit` and the shares
of their clients allow (see `FairQueue`); then requests take turns.

A request whose step is too large for one forward makes it in parts, some branches in each. Beside others it gets as
many rows as they have together, over many steps, so that it slows them down by half at most. Several such requests take
turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from lopa_ray.decoding.branch_budget import BranchBudget
from lopa_ray.protocol.plan import Plan
from lopa_ray.scheduling.branch_assignment import BranchAssignment
from lopa_ray.scheduling.fair_queue import FairQueue
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.running_request import RunningRequest
from lopa_ray.scheduling.step_cost import StepCost
from lopa_ray.scheduling.step_limit import StepLimit
from lopa_ray.scheduling.suspects import Suspects

OnError = Callable[[int, Exception], None]


class StepSelection:
    """Selects the requests of each step, and learns from its time how large steps may be."""

    def __init__(
        self,
        budget: BranchBudget,
        prefix_index: PrefixIndex,
        queue: FairQueue,
        suspects: Suspects,
        limit: StepLimit,
    ) -> None:
        self.limit = limit
        self.assignment = BranchAssignment(0, 0)
        """Of the current step."""
        self._budget = budget
        self._prefix_index = prefix_index
        self._queue = queue
        self._suspects = suspects
        self._cost = StepCost()
        self._credit = 0.0
        """Rows of a worker that requests with long steps have still to get, of as many as others were served."""
        self._waiting_branch_rows = self._part_rows = 0
        """Of the current step: rows of a branch of the long step whose turn it is, and of those in the step, of all
        workers."""

    def select(self, running: Mapping[int, RunningRequest], num_workers: int, on_error: OnError) -> None:
        """Set the plans of the requests of the next step. `on_error` gets a request that cannot go on, and why."""
        limit = self.limit.rows
        self.assignment = BranchAssignment(num_workers, limit)
        plans = self._plans(running, on_error)
        rows = {request_id: running[request_id].rows_left(plan) for request_id, plan in plans.items()}
        long = [request_id for request_id in plans if self._is_long(running[request_id], plans[request_id])]
        part_rows = {request_id: rows.pop(request_id) for request_id in long}
        room: float = limit
        self._waiting_branch_rows = plans[long[0]].max_branch_rows if long else 0
        if rows and long:
            room = self._room_beside(sum(rows.values()) / num_workers)
            part_rows = {long[0]: min(part_rows[long[0]], int(room * num_workers))} if room else {}
        self._part_rows = 0
        for request_id in self._queue.select(part_rows | rows, num_workers * self._cost.free_rows):
            entry, plan = running[request_id], plans[request_id]
            if request_id not in part_rows:
                has_room = self._add(entry, plan)
            elif has_room := self._add_part(entry, plan, room):
                self._part_rows += plan.rows_of(entry.assigned)
            if not has_room:
                break

    def _room_beside(self, others: float) -> float:
        """Rows of a worker that a request with a long step gets beside others, a branch at least. 0: others have to be
        served first. `others`: rows of a worker that these want in this step."""
        limit, branch_rows = self.limit.rows, self._waiting_branch_rows
        if self._credit >= branch_rows:
            beside = limit - others
            # Where not all fit, it has a step of its own, and others go on in the next one.
            return min(self._credit, beside if beside >= branch_rows else max(limit, branch_rows))
        free = min(self._cost.free_rows, limit - others)
        return free if free >= branch_rows else 0

    def _plans(self, running: Mapping[int, RunningRequest], on_error: OnError) -> dict[int, Plan]:
        """Plans of the requests that may take part in the next step, first in turn first."""
        plans: dict[int, Plan] = {}
        for request_id in self._in_turn(running):
            session = running[request_id].session
            try:
                num_branches = self._budget.num_branches(session.settings, len(running))
                plan = running[request_id].next_plan(num_branches)
                if not session.steps:  # an answer that has begun is not broken off
                    self.limit.check(plan.max_branch_rows)
                plans[request_id] = plan
            except Exception as error:  # an error of one request must not end the others
                on_error(request_id, error)
        return plans

    def _in_turn(self, running: Mapping[int, RunningRequest]) -> list[int]:
        suspect = self._suspects.next_of(running)
        if suspect is not None:
            return [suspect]
        # Where all were in the last step, one that was left out of earlier ones comes first.
        return sorted(running, key=lambda key: (running[key].last_step, running[key].session.steps))

    def _is_long(self, entry: RunningRequest, plan: Plan) -> bool:
        """Whether the request's step is made in parts."""
        if entry.replay or len(plan.branches) == 1:
            return False
        if entry.rank_of_branch:
            return True
        if plan.num_rows <= self.limit.rows:
            return False
        alone = BranchAssignment(self.assignment.num_workers, math.inf)
        alone.add(plan, range(len(plan.branches)), ())
        return alone.rows > self.limit.rows

    def _add(self, entry: RunningRequest, plan: Plan) -> bool:
        """Assign the branches of a request's plan. Returns whether the step has room."""
        if entry.replay:
            entry.plan = plan if self.assignment.add_replay(plan) else None
            return entry.plan is not None
        stored_prefix = self._prefix_index.match(self._prefix_index.hash_prefixes(plan))
        ranks = self.assignment.add(plan, range(len(plan.branches)), stored_prefix)
        if ranks is None:
            return False
        entry.plan, entry.stored_prefix, entry.assigned = plan, stored_prefix, ranks
        return True

    def _add_part(self, entry: RunningRequest, plan: Plan, room: float) -> bool:
        """Assign as many further branches of a request's plan as `room` allows. Returns whether the step has room."""
        # Stored K/V would have to be the same in all parts, so none are used.
        ranks = self.assignment.add_part(plan, entry.branches_left(plan), room)
        if ranks is None:
            return False
        entry.plan, entry.assigned = plan, ranks
        return True

    def record(self, seconds: float) -> None:
        """The current step has succeeded. `seconds`: of the slowest worker."""
        assignment = self.assignment
        self._cost.record(assignment.rows, seconds)
        self.limit.record(assignment.rows, assignment.branch_rows, seconds, self._cost.free_rows)
        if not self._waiting_branch_rows:
            self._credit = 0.0
            return
        others = (assignment.total_rows - self._part_rows) / assignment.num_workers
        most = max(self.limit.rows, self._waiting_branch_rows)
        self._credit = min(self._credit + others, most)
        self._credit = max(0.0, self._credit - self._part_rows / assignment.num_workers)
