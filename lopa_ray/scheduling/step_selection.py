"""StepSelection: which requests take part in a step, and which worker evaluates which of their branches.

A step is for all requests in flight, for one possible poison request alone (see `PoisonRequests`), or for as many as
`StepLimit` and the shares of their clients allow (see `FairQueue`); then requests take turns, the longest unserved
first. With overlap a step has at most half of the requests that could be in flight, so that halves stay even.

A request whose step is too large for one forward makes it in parts, some branches in each. Next to others it gets as
many rows as they have together, over many steps, so that it slows them down by half at most. Several such requests take
turns. Such steps take so long that overlap would win nothing, so it is off then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from lopa_ray.config.group_settings import AutoSwitch
from lopa_ray.protocol.forward_costs import ForwardCosts, StepLoad
from lopa_ray.protocol.plan import Plan, StoredPrefix
from lopa_ray.scheduling.branch_assignment import BranchAssignment
from lopa_ray.scheduling.fair_queue import FairQueue
from lopa_ray.scheduling.planned_step import STEPS_IN_FLIGHT, PlannedStep
from lopa_ray.scheduling.poison_requests import PoisonRequests
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.running_request import RunningRequest
from lopa_ray.scheduling.step_cost import StepCost
from lopa_ray.scheduling.step_limit import StepLimit

HALVED_ROWS = 4
"""Rows in flight with overlap auto are this many times the rows that cost as much as the fixed part of a step,
which halves have twice: a fifth more at most, and the host's work is hidden."""

OnError = Callable[[int, Exception], None]


class StepSelection:
    """Selects the requests of each step, and learns from its time how large steps may be."""

    def __init__(
        self,
        prefix_index: PrefixIndex,
        queue: FairQueue,
        poison: PoisonRequests,
        limit: StepLimit,
        overlap: AutoSwitch,
    ) -> None:
        self.limit = limit
        self.costs: ForwardCosts | None = None  # of the workers, where the number of branches follows it
        self._overlap = overlap
        self._assignment = BranchAssignment(0, 0)
        self._prefix_index = prefix_index
        self._queue = queue
        self._poison = poison
        self._cost = StepCost()
        self._credit = 0.0  # rows of a worker still due to long steps, of as many as others were served

    def select(
        self, running: Mapping[int, RunningRequest], number: int, num_workers: int, on_error: OnError
    ) -> PlannedStep:
        """Plan the group's step `number`, for requests that are not in flight with another step already. `on_error`
        gets a request that cannot go on, and why."""
        limit = self.limit.rows
        in_flight = {key: entry.rows_in_step for key, entry in running.items() if entry.plan is not None}
        self._assignment = BranchAssignment(num_workers, limit)
        plans = self._plans(running, in_flight, num_workers, on_error)
        rows = {key: sum(running[key].rows_left(plan).values()) for key, plan in plans.items()}
        long = [request_id for request_id in plans if self._is_long(running[request_id], plans[request_id])]
        part_rows = {request_id: rows.pop(request_id) for request_id in long}
        room: float = limit
        waiting_branch_rows = plans[long[0]].max_branch_rows if long else 0
        if rows and long:
            room = self._room_for_part(sum(rows.values()) / num_workers, waiting_branch_rows)
            part_rows = {long[0]: min(part_rows[long[0]], int(room * num_workers))} if room else {}
        part_rows_taken = 0
        taken: set[int] = set()
        selected = self._queue.select(part_rows | rows, num_workers * self._cost.free_rows, in_flight)
        wanted = sum(rows.get(request_id, 0) for request_id in selected) + sum(in_flight.values())
        for request_id in self._of_this_step(selected, len(in_flight), wanted / num_workers, bool(long)):
            entry, plan = running[request_id], plans[request_id]
            is_part = request_id in part_rows
            if not self._add(entry, plan, room if is_part else None):
                break
            part_rows_taken += plan.rows_of(entry.assigned) if is_part else 0
            taken.add(request_id)
        return PlannedStep(
            number,
            tuple(entry for request_id, entry in running.items() if request_id in taken),
            self._assignment,
            waiting_branch_rows,
            part_rows_taken,
            self._prefix_index.pending_evictions,
        )

    def _of_this_step(self, selected: list[int], in_flight: int, wanted: float, is_long: bool) -> list[int]:
        """The part of the selected requests that is in this step. `wanted`: rows of a worker that they all want."""
        if self._overlap == "auto" and wanted < HALVED_ROWS * self._cost.free_rows:
            return [] if in_flight else selected  # they wait for the others, to be in one step with them
        if not self._overlap or is_long:
            return selected
        return selected[: math.ceil((len(selected) + in_flight) / STEPS_IN_FLIGHT)]

    def _room_for_part(self, others: float, branch_rows: int) -> float:
        """Rows of a worker for a request with a long step next to others, which want `others` rows; one branch of
        `branch_rows` rows at least. 0: others have to be served first."""
        limit = self.limit.rows
        if self._credit >= branch_rows:
            left = limit - others
            # Where not all fit, it has a step of its own, and others go on in the next step.
            return min(self._credit, left if left >= branch_rows else max(limit, branch_rows))
        free = min(self._cost.free_rows, limit - others)
        return free if free >= branch_rows else 0

    def _plans(
        self,
        running: Mapping[int, RunningRequest],
        in_flight: Collection[int],
        num_workers: int,
        on_error: OnError,
    ) -> dict[int, Plan]:
        """Plans of the requests that may take part in the next step, first in turn first."""
        plans: dict[int, Plan] = {}
        load = None if self.costs is None else StepLoad(self.costs, len(running), num_workers)
        computing = {
            entry.prompt_key: key
            for key, entry in running.items()
            if entry.save_prefix is not None or (key in in_flight and not entry.session.steps)
        }
        in_turn = self._in_turn(running)
        for request_id in in_turn:
            if request_id in in_flight:
                continue
            session = (entry := running[request_id]).session
            try:
                num_branches = session.branches_in_step(len(running))
                plan = entry.next_plan(num_branches, load)
                if not session.steps:  # an answer that has begun is not broken off
                    self.limit.check(plan.max_branch_rows)
                if not self._waits_for_prompt(entry, plan, computing) or len(in_turn) == 1:
                    plans[request_id] = plan
            except Exception as error:  # an error of one request must not end the others
                on_error(request_id, error)
        return plans

    def _waits_for_prompt(
        self, entry: RunningRequest, plan: Plan, computing: dict[tuple[str, bytes] | None, int]
    ) -> bool:
        """Whether another answer to the same prompt is to store the prompt's K/V first. Clients do not wait for each
        other, and no request for a second one, as the first may end before it stores anything. `computing`: the
        prompts that requests compute or are about to store; the request's own is added."""
        hashes = {} if entry.replay else self._prefix_index.hash_prefixes(plan)
        whole = max(hashes, default=0)
        stored = self._prefix_index.match(hashes)
        if not whole or (stored and stored[-1].span.stop == whole):
            return False
        entry.prompt_key = entry.session.client, hashes[whole]
        other = computing.setdefault(entry.prompt_key, entry.id)
        if other == entry.id or entry.awaited not in (None, other):
            return False
        entry.awaited = other
        return True

    def _in_turn(self, running: Mapping[int, RunningRequest]) -> list[int]:
        alone = self._poison.next_of(running)
        if alone is not None:
            return [alone]
        # Where all were in the last step, a request that was left out of earlier steps comes first.
        return sorted(running, key=lambda key: (running[key].last_step, running[key].session.steps))

    def _is_long(self, entry: RunningRequest, plan: Plan) -> bool:
        if entry.replay or len(plan.branches) == 1:
            return False
        if entry.rank_of_branch:
            return True
        if plan.num_rows <= self.limit.rows:
            return False
        alone = BranchAssignment(len(self._assignment.load), math.inf)
        alone.add(entry.rows_left(plan))
        return alone.rows > self.limit.rows

    def _add(self, entry: RunningRequest, plan: Plan, room: float | None) -> bool:
        """Assign the branches of a plan, with `room` as many as that allows. Returns False if there is no room."""
        if entry.replay:
            entry.plan = plan if self._assignment.add_replay(plan.max_branch_rows) else None
            return entry.plan is not None
        stored_prefix: tuple[StoredPrefix, ...] = ()
        if room is None:  # otherwise stored K/V would have to be the same in all parts
            stored_prefix = self._prefix_index.match(self._prefix_index.hash_prefixes(plan))
        ranks = self._assignment.add(entry.rows_left(plan, stored_prefix), room)
        if ranks is None:
            return False
        entry.plan, entry.stored_prefix, entry.assigned = plan, stored_prefix, ranks
        return True

    def record(self, step: PlannedStep, seconds: float) -> None:
        """A step has succeeded. `seconds`: of the slowest worker."""
        assignment = step.assignment
        self._cost.record(assignment.rows, seconds)
        self.limit.record(assignment.rows, assignment.branch_rows, seconds, self._cost.free_rows)
        if not step.waiting_branch_rows:
            self._credit = 0.0
            return
        num_workers = len(assignment.load)
        others = (sum(assignment.load) - step.part_rows) / num_workers
        max_credit = max(self.limit.rows, step.waiting_branch_rows)
        self._credit = min(self._credit + others, max_credit)
        self._credit = max(0.0, self._credit - step.part_rows / num_workers)
