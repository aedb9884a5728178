"""Journal: a record from which a request can continue after all workers that had its K/V were lost."""

from __future__ import annotations

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.scheduling.replay import Replay


class Journal:
    """The journal of one request. The receiver of the request's step events writes it."""

    def __init__(self, session: RequestSession) -> None:
        """`session` is the session as it is submitted. It is not modified."""
        self.session = session
        self._state: bytes | None = None
        self._replay = Replay(session.replay)

    def record(self, plan: Plan, outcome: StepOutcome, state: bytes) -> None:
        """Record a step. `state` is the session's state after the step (see `RequestSession.export_state`)."""
        self._state = state
        self._replay.record(plan, outcome)

    def restored_session(self) -> RequestSession:
        """The session after the last recorded step, for submission to workers that have none of its K/V."""
        if self._state is None:
            return self.session
        return self.session.with_state(self._state, self._replay.requests)
