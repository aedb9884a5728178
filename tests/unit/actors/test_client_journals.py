"""A client's journals and the master's scheduler agree: on what a request continues from, and on who runs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from actors.client.client_journals import ClientJournals
from actors.group.master import Master
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.poison_requests import MAX_LONE_LOSSES
from lopa_ray.scheduling.scheduler import Scheduler
from support.fake_model import VOCABULARY, FakeModel

MODEL = FakeModel(seed=2)
SETTINGS = LopaSettings(max_new_tokens=24, block_size=4, num_branches=3, stop_at_eos=False)


def session(client: str, token: int = 2) -> DecodeSession:
    made = new_session((1, token), SETTINGS, VOCABULARY)
    made.client = client
    return made


class Group:
    """A master with its scheduler, and its client's journals."""

    def __init__(self, journals: ClientJournals, max_num_seqs: int) -> None:
        self.journals = journals
        self.scheduler = Scheduler(max_num_seqs)
        self._master = Master()
        self._master.scheduler = self.scheduler

    async def submit(self, sessions: Mapping[int, DecodeSession]) -> None:
        await self._master.submit(sessions, self.journals.losses)

    async def begin_step(self) -> list[StepPlan]:
        """Plan a step, then publish the one before, as a master does."""
        plans = self.scheduler.plan(1)
        self._master._publish()
        while not self._master._published.empty():
            list(self.journals.record(await anext(self._master.stream())))
        return plans

    def finish_step(self, plans: list[StepPlan]) -> None:
        self._master._unpublished = self.scheduler.advance([MODEL.execute(plan) for plan in plans]), None


def missing_positions(session: DecodeSession) -> set[int]:
    """Cached positions that a step reads though no commit of a replayed step has brought them."""
    cached: set[int] = set()
    missing: set[int] = set()
    for plan in (*(scheduled.plan for scheduled in session.replay), session.plan()):
        if plan.commit is not None:
            cached.update(position for span in plan.commit.spans for position in span)
        read = {position for span in plan.cached for position in span}
        missing |= read - cached
        cached &= read
    return missing


def test_a_request_that_gave_its_slot_away_has_all_of_its_steps_in_its_journal() -> None:
    async def run() -> int:
        journals = ClientJournals()
        group, preempted = Group(journals, max_num_seqs=2), 0
        sessions = {0: session("a"), 1: session("a", 3)}
        for number, made in sessions.items():
            journals.begin(number, made)
        await group.submit(sessions)
        for number in range(100):
            if number == 6:
                journals.begin(2, session("b"))
                await group.submit({2: session("b")})
            plans = await group.begin_step()
            preempted += group.scheduler.waiting
            for restored in journals.resumed_sessions().values():
                assert not missing_positions(restored)
            if not plans:
                break
            group.finish_step(plans)
        return preempted

    assert asyncio.run(run()) > 0


def test_the_request_that_ran_alone_is_the_one_that_is_blamed() -> None:
    """Clients' requests get slots in another order than that in which they were submitted."""

    async def run() -> None:
        journals = ClientJournals()
        for number, client in enumerate("aab"):  # slots go to 0, 2 and then 1
            journals.begin(number, session(client))
        assert journals.record_silent_loss(max_num_seqs=3) is None
        ran_alone, blamed = list[int](), None
        while blamed is None:
            group = Group(journals, max_num_seqs=3)
            await group.submit(journals.resumed_sessions())
            if not ran_alone:
                group.finish_step(await group.begin_step())
            await group.begin_step()
            ran_alone += group.scheduler.planned_ids
            blamed = journals.record_silent_loss(max_num_seqs=3)
        assert len(ran_alone) == MAX_LONE_LOSSES and {*ran_alone} == {blamed}

    asyncio.run(run())
