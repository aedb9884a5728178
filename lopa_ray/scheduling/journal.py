"""Journal: a record from which a request can continue after all workers that had its K/V were lost. It does no I/O.

Cached K/V depend on the tokens of the window at the time they were written, so they cannot be rebuilt from the decided
tokens alone. A journal holds the state of the session after the last step. For each step whose K/V are still in the
cache it holds the inputs of the winning branch. To restore a request, these forwards are run again in order, starting
with an empty cache, and then the next step runs. Inputs and cache are the same as before, so the K/V are the same, and
no position is decided twice.
"""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, Spans
from lopa_ray.protocol.sampling_params import SamplingParams


class Journal:
    """The journal of one request. The receiver of the request's step events writes it."""

    def __init__(self, session: DecodeSession) -> None:
        """`session` is the session as it is submitted. It is not modified."""
        self._session = session
        self._state: bytes | None = None
        self._replay: list[ScheduledRequest] = []
        self._staged: list[Spans] = []
        """What each step of `_replay` has staged for a commit."""
        self._commit: Commit | None = None
        """The last commit of a step's outcome."""

    def record(self, plan: Plan, outcome: StepOutcome, state: bytes) -> None:
        """Record a step. `state` is the session's state after the step (see `DecodeSession.export_state`)."""
        self._state = state
        # A replayed step is dropped if the new step reads nothing that it cached.
        while self._replay and not _reads(plan, self._staged[-1]):
            self._commit = self._replay.pop().plan.commit
            self._staged.pop()
        commit = outcome.commit
        if commit is not None or plan.cached:
            replayed = () if commit is None or commit.shared else (commit.branch,)
            self._replay.append(ScheduledRequest(0, 0, self._replayed(plan), replayed))
            self._staged.append(() if commit is None else commit.spans)
        self._commit = commit or self._commit

    def _replayed(self, plan: Plan) -> Plan:
        """The part of a plan that fills a cache. Its commit is that of the last step that staged K/V."""
        branches = tuple(
            Branch(branch.segments, range(0), branch.fills, branch.to_stage) for branch in plan.branches
        )
        return replace(
            plan,
            branches=branches,
            commit=self._commit,
            sampling_params=SamplingParams(),
            token_bitmasks=(),
            targets=(),
        )

    def restored_session(self) -> DecodeSession:
        """The session after the last recorded step, for submission to workers that have none of its K/V."""
        if self._state is None:
            return self._session
        return self._session.with_state(self._state, self._replay)


def _reads(plan: Plan, spans: Spans) -> bool:
    """Whether a step reads any of `spans` from the cache."""
    return any(
        cached.start < span.stop and span.start < cached.stop for cached in plan.cached for span in spans
    )
