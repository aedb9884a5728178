"""Journal: what it takes to go on with a request when every worker that had its K/V is lost. No I/O.

Cached K/V depend on what the window held when they were written, so decided tokens alone do not bring them
back. A journal has the session as it stood after the last step and, of each step whose K/V is still in the cache,
the winner's inputs. On an empty cache those forwards are run again, in order, and the next step follows:
the same inputs on the same cache, so the same K/V, and nothing is decided twice.
"""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, Spans
from lopa_ray.protocol.sampling_params import SamplingParams


class Journal:
    """One request's, written by the receiver of its step events."""

    def __init__(self, session: DecodeSession) -> None:
        """`session`: as it is submitted; it is not changed."""
        self._session = session
        self._state: bytes | None = None
        self._replay: list[ScheduledRequest] = []
        self._commit: Commit | None = None
        """Of what the last step that staged K/V has staged."""

    def record(self, plan: Plan, outcome: StepOutcome, state: bytes) -> None:
        """Take in a step; `state`: the session's after it (see `DecodeSession.export_state`)."""
        self._state = state
        while self._replay and not _reads(plan, self._replay[-1].plan.to_stage):
            self._commit = self._replay.pop().plan.commit  # this step cuts all that it has left in the cache
        if plan.to_stage or plan.cached:
            staged = plan.to_stage and not plan.stage_shared
            self._replay.append(
                ScheduledRequest(0, 0, self._replayed(plan), (outcome.winner,) if staged else ())
            )
        if plan.to_stage:
            self._commit = Commit(plan.step, outcome.winner, plan.to_stage, plan.stage_shared)

    def _replayed(self, plan: Plan) -> Plan:
        """What of a plan fills a cache, with the commit that the steps since the last such plan carried out."""
        branches = tuple(Branch(branch.segments, branch.fills) for branch in plan.branches)
        return replace(
            plan,
            branches=branches,
            scored=range(0),
            commit=self._commit,
            sampling_params=SamplingParams(),
            token_bitmasks=(),
            logit_changes=None,
            targets=(),
        )

    def restored_session(self) -> DecodeSession:
        """The request as it stood after the last step, to be submitted to workers that have nothing of it."""
        if self._state is None:
            return self._session
        return self._session.with_state(self._state, self._replay)


def _reads(plan: Plan, spans: Spans) -> bool:
    """Whether a step reads any of `spans` from the cache."""
    return any(
        cached.start < span.stop and span.start < cached.stop for cached in plan.cached for span in spans
    )
