"""RunningRequest: a request that has a slot, and its part of the step that it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.protocol.events import RequestStep
from lopa_ray.protocol.forward_costs import StepLoad
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan, ScheduledRequest, StoredPrefix
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.scheduling.replay import Replay


@dataclass(slots=True)
class RunningRequest:
    id: int
    session: RequestSession
    slot: int
    replay: list[ScheduledRequest] = field(init=False)
    """Plans that every worker must carry out, in order, before the session's next step; see `Replay`."""
    log: Replay = field(init=False)  # up to the last step, should the request have to give its slot away
    plan: Plan | None = None  # of the step in flight that the request takes part in
    assigned: dict[int, int] = field(default_factory=dict)  # branch → rank of its worker in that step
    rank_of_branch: dict[int, int] = field(default_factory=dict)
    """Branch that an earlier part of the session's step has evaluated → rank of the worker that did."""
    reports: list[BranchReport] = field(default_factory=list)  # of the branches in `rank_of_branch`
    prompt_key: tuple[str, bytes] | None = None
    """Client and digest of the prompt, in so far as its K/V can be stored; None before the first plan."""
    awaited: int | None = None  # the request of the group whose K/V this one waits for, or has waited for
    last_step: int = 0
    source_rank: int | None = None  # of the worker with the K/V of the next plan's commit; None: of all
    pending_commit: ScheduledRequest | None = None
    """The last plan with the branch that staged these K/V. It is kept until a step has committed them."""
    stored_prefix: tuple[StoredPrefix, ...] = ()
    save_prefix: StoredPrefix | None = None
    """K/V that the workers save for later requests when they carry out the next plan's commit."""

    def __post_init__(self) -> None:
        self.log = Replay(self.session.replay)
        self.replay = [replace(step, request_id=self.id, slot=self.slot) for step in self.session.replay]

    def next_plan(self, num_branches: int, load: StepLoad | None) -> Plan:
        return self.replay[0].plan if self.replay else self.session.plan(num_branches, load)

    def rows_left(self, plan: Plan, stored_prefix: Sequence[StoredPrefix] = ()) -> dict[int, int]:
        """The rows of each branch of the plan that no part of its step has evaluated."""
        start = plan.start + sum(len(part.span) for part in stored_prefix)
        branches = enumerate(plan.branches)
        left = ((index, branch) for index, branch in branches if index not in self.rank_of_branch)
        return {index: branch.stop - max(start, branch.start) for index, branch in left}

    @property
    def rows_in_step(self) -> int:
        """Rows of its share of the step that it is in."""
        assert self.plan is not None
        return self.plan.num_rows if self.replay else self.plan.rows_of(self.assigned)

    def suspended(self) -> RequestSession:
        """The session as it stands, to go on in an empty slot."""
        return self.session.with_state(self.session.export_state(), self.log.requests)

    def scheduled(self, rank: int) -> ScheduledRequest:
        """The part of the worker of that rank in the request's present step. It gets the plan even without a branch,
        because all workers commit and cut their caches."""
        assert self.plan is not None
        if self.replay:
            return replace(self.replay[0], source_rank=self.source_rank)
        return ScheduledRequest(
            self.id,
            self.slot,
            self.plan,
            tuple(branch for branch, assigned in self.assigned.items() if assigned == rank),
            self.source_rank,
            self.stored_prefix,
            self.save_prefix,
        )

    def add_reports(self, plan: Plan, reports: Sequence[BranchReport]) -> bool:
        """The branches of `assigned` were evaluated. Returns whether all of the plan are."""
        self.reports += reports
        self.rank_of_branch |= self.assigned
        self.source_rank = None  # every worker has carried out the commit
        return len(self.rank_of_branch) == len(plan.branches)

    def drop_parts(self) -> None:
        """The session's step begins anew: what workers have staged in it may be lost."""
        self.rank_of_branch, self.reports = {}, []

    def finish_replay_step(self, plan: Plan) -> None:
        replayed = self.replay.pop(0)
        stages = replayed.branch_indices or (plan.stage_shared and plan.branches[0].to_stage)
        self.pending_commit, self.source_rank = replayed if stages else None, None

    def finish_step(self, plan: Plan, outcome: StepOutcome, num_workers: int) -> None:
        """Set the pending commit and its source rank; None if all workers staged the same K/V or there is only one."""
        self.log.record(plan, outcome)
        self.pending_commit, self.source_rank = None, None
        if outcome.commit is not None:
            branch, prefix = outcome.commit.branch, self.stored_prefix
            self.pending_commit = ScheduledRequest(self.id, self.slot, plan, (branch,), stored_prefix=prefix)
            if not outcome.commit.shared and num_workers > 1:
                self.source_rank = self.rank_of_branch[branch]
        self.drop_parts()

    def event(self, plan: Plan, outcome: StepOutcome) -> RequestStep:
        """The step that has ended, for the client."""
        cached = self.stored_prefix[-1].span.stop if self.stored_prefix else 0
        saved = 0 if self.save_prefix is None else len(self.save_prefix.span)
        return RequestStep(self.id, plan, outcome, cached_positions=cached, saved_positions=saved)
