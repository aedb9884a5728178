"""RunningRequest: a request that has a slot, and its part of the current step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan, ScheduledRequest, StoredPrefix
from lopa_ray.scheduling.replay import Replay


@dataclass(slots=True)
class RunningRequest:
    """The state of a request between its first and its last step."""

    id: int
    session: DecodeSession
    slot: int
    replay: list[ScheduledRequest] = field(init=False)
    """Plans that every worker must carry out, in order, before the session's next step; see `Replay`."""
    log: Replay = field(init=False)
    """The replay up to the last step, should the request have to give its slot away."""
    plan: Plan | None = None
    """The plan of the current step; None: the request takes no part in it."""
    rank_of_branch: dict[int, int] = field(default_factory=dict)
    """Branch of the current plan → rank of the worker that evaluates it."""
    last_step: int = 0
    """The last step that the request took part in."""
    source_rank: int | None = None
    """Rank of the worker that has the K/V of the next plan's commit; None if every worker has them."""
    pending_commit: ScheduledRequest | None = None
    """The last plan with the branch that staged these K/V. It is kept until a step has committed them."""
    stored_prefix: tuple[StoredPrefix, ...] = ()
    """Stored K/V of earlier requests that the current plan uses."""
    save_prefix: StoredPrefix | None = None
    """K/V that the workers save for later requests when they carry out the next plan's commit."""

    def __post_init__(self) -> None:
        self.log = Replay(self.session.replay)
        self.replay = [
            replace(scheduled, request_id=self.id, slot=self.slot) for scheduled in self.session.replay
        ]

    def next_plan(self, num_branches: int) -> Plan:
        """The plan of the next step, of at most `num_branches` branches unless it is one of the replay."""
        return self.replay[0].plan if self.replay else self.session.plan(num_branches)

    def suspended(self) -> DecodeSession:
        """The session as it stands, to go on in an empty slot."""
        return self.session.with_state(self.session.export_state(), self.log.requests)

    def scheduled(self, rank: int) -> ScheduledRequest | None:
        """What the worker of that rank does for the request in the current step. It gets the plan even without a
        branch, because all workers commit and cut their caches. None: the request takes no part."""
        if self.plan is None:
            return None
        if self.replay:
            return replace(self.replay[0], source_rank=self.source_rank)
        return ScheduledRequest(
            self.id,
            self.slot,
            self.plan,
            tuple(branch for branch, assigned in self.rank_of_branch.items() if assigned == rank),
            self.source_rank,
            self.stored_prefix,
            self.save_prefix,
        )

    def finish_replay_step(self, plan: Plan) -> None:
        """A plan of `replay` was carried out."""
        replayed = self.replay.pop(0)
        stages = replayed.branch_indices or (plan.stage_shared and plan.branches[0].to_stage)
        self.pending_commit, self.source_rank = replayed if stages else None, None

    def finish_step(self, plan: Plan, outcome: StepOutcome, num_workers: int) -> None:
        """Set the pending commit and its source rank; None if all workers staged the same K/V or there is only one."""
        self.log.record(plan, outcome)
        self.pending_commit, self.source_rank = None, None
        if outcome.commit is not None:
            branch = outcome.commit.branch
            self.pending_commit = ScheduledRequest(
                self.id, self.slot, plan, (branch,), stored_prefix=self.stored_prefix
            )
            if not outcome.commit.shared and num_workers > 1:
                self.source_rank = self.rank_of_branch[branch]
