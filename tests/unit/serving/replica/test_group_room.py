"""A client whose queue at a group is full is refused; other clients are not."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cluster.choices.messages import ChoicesRequest
from cluster.serving.replica.group_server import REQUESTS_PER_SLOT, GroupServer
from lopa_ray.errors import OverloadedError

SLOTS = 2


class Waiting:
    """In place of the choices of a group: no request gets any."""

    def __init__(self) -> None:
        self.began = 0

    async def create_in_background(self, request: ChoicesRequest, arrival_time: float) -> None:
        self.began += 1
        await asyncio.Event().wait()


@pytest.mark.parametrize("most", [None, 3])
def test_the_queue_of_one_client_is_not_that_of_another(most: int | None) -> None:
    async def ask(group: GroupServer, client: str) -> None:
        async with aclosing(group.generate(ChoicesRequest("id", ("hi",), {}, client=client))) as outputs:
            await anext(outputs)

    async def run() -> None:
        settings = {
            "model": {"path": "demo", "max_num_seqs": SLOTS},
            "group": {"max_requests_per_client": most},
        }
        group, choices = GroupServer("demo", settings), Waiting()
        group._choices = choices
        room = most or REQUESTS_PER_SLOT * SLOTS
        heavy = [asyncio.create_task(ask(group, "heavy")) for _ in range(room)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=f"this client has {room} requests"):
            await ask(group, "heavy")
        light = asyncio.create_task(ask(group, "light"))
        await asyncio.sleep(0)
        assert choices.began == room + 1
        for task in (*heavy, light):
            task.cancel()
        await asyncio.wait([*heavy, light])
        assert not group._requests

    asyncio.run(run())
