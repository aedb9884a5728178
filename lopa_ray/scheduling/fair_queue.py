"""FairQueue: which client's request gets a slot next, and which requests take part in a step. Each client's service is
counted in rows of forwards, as by virtual token counters (arXiv 2401.00588), and no client gets much ahead of another
one, however many requests it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lopa_ray.decoding.request_session import RequestSession


class FairQueue:
    """All unfinished requests by client, and the requests that wait for a slot."""

    def __init__(self) -> None:
        self.waiting: dict[int, RequestSession] = {}  # requests without a slot
        self._clients: dict[int, str] = {}
        self._slots: Counter[str] = Counter()  # client → slots that its requests have
        self._served: dict[str, int] = {}  # client → rows, from where the others were when it came
        self._preemptions: Counter[int] = Counter()

    @property
    def waiting_by_client(self) -> dict[str, int]:
        return dict(Counter(session.client for session in self.waiting.values()))

    def add(self, request_id: int, session: RequestSession) -> None:
        """A new client starts at the lowest service count, so it cannot claim service for the time it was away."""
        if session.client not in self._served:
            self._served[session.client] = min(self._served.values(), default=0)
        self._clients[request_id] = session.client
        self.waiting[request_id] = session

    @property
    def begun(self) -> list[int]:
        """The requests that wait again."""
        return [request_id for request_id, session in self.waiting.items() if session.steps]

    def pop(self, *, begun: bool = False) -> tuple[int, RequestSession]:
        """The request that gets the next slot: of the client that has the fewest, and was served least, the first by
        `priority`, then by age. `begun`: one of those."""
        waiting = {key: self.waiting[key] for key in (self.begun if begun else self.waiting)}
        clients = dict.fromkeys(session.client for session in waiting.values())
        # Of equal clients the first, whose oldest request has waited longest.
        client = min(clients, key=lambda client: (self._slots[client], self._served[client]))
        own = [request_id for request_id, session in waiting.items() if session.client == client]
        request_id = min(own, key=lambda request_id: (self.waiting[request_id].priority, request_id))
        session = self.waiting.pop(request_id)
        self._slots[session.client] += 1
        return request_id, session

    def end(self, request_id: int) -> None:
        client = self._clients.pop(request_id)
        self._preemptions.pop(request_id, None)
        if self.waiting.pop(request_id, None) is None:
            self._slots[client] -= 1
        if client not in self._clients.values():
            del self._served[client]
            self._slots.pop(client, None)

    # Preemption

    def victim(self, steps: Mapping[int, int]) -> int | None:
        """The request that has to give its slot to a client that waits and has none, if a client has several. `steps`:
        request whose slot may be taken → steps that it has made, which cost time again."""
        if all(self._slots[session.client] for session in self.waiting.values()):
            return None
        client, slots = self._slots.most_common(1)[0]
        if slots < 2:
            return None
        own = [request_id for request_id in steps if self._clients[request_id] == client]
        return min(own, key=lambda key: (self._preemptions[key], steps[key]), default=None)

    def requeue(self, request_id: int, session: RequestSession) -> None:
        self._preemptions[request_id] += 1
        self._slots[session.client] -= 1
        self.waiting[request_id] = session

    # Steps

    def select(self, rows: Mapping[int, int], free_rows: float, in_flight: Mapping[int, int]) -> list[int]:
        """The requests of the next step. `rows`: request with a slot → rows of its next step, first in turn first.
        `in_flight`: request → its rows in a step that is not done yet; they count as served, and as wanted again. In
        each step a client may get as far as the client that was served least, and further by the rows of the client
        that wants the fewest. Then `free_rows` are left, which cost little compared with the fixed time of a step."""
        wanted: Counter[str] = Counter()
        for request_id, number in (*rows.items(), *in_flight.items()):
            wanted[self._clients[request_id]] += number
        if len(wanted) < 2:
            return [*rows]
        fewest = min(wanted.values())
        served = {client: self._served[client] for client in wanted}
        for request_id, number in in_flight.items():
            served[self._clients[request_id]] += number
        level = min(served.values()) + fewest
        selected: list[int] = []
        for request_id, number in rows.items():
            client = self._clients[request_id]
            if served[client] < level:
                served[client] += number
                selected.append(request_id)
        room = len(wanted) * fewest + free_rows - sum(in_flight.values())
        room -= sum(rows[request_id] for request_id in selected)
        for request_id in [request_id for request_id in rows if request_id not in selected]:
            if rows[request_id] <= room:
                room -= rows[request_id]
                selected.append(request_id)
        return selected

    def serve(self, request_id: int, rows: int) -> None:
        self._served[self._clients[request_id]] += rows


def first_in_line(sessions: Mapping[int, RequestSession], number: int) -> list[int]:
    """The requests that get slots first if all are submitted together."""
    queue = FairQueue()
    for request_id, session in sessions.items():
        queue.add(request_id, session)
    return [queue.pop()[0] for _ in range(min(number, len(sessions)))]
