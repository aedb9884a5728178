"""Who reads the weights of a group: one worker per node, for all others there. Workers are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.exceptions import ObjectLostError

from actors.workers import node_weights
from actors.workers.node_weights import NodeWeights
from lopa_ray.errors import CheckpointError
from support.tiny_model import tiny_config


class FakeWorker:
    """Answers as the handle of a worker actor does."""

    def __init__(
        self,
        node: str = "here",
        size: int = 1,
        error: Exception | None = None,
        load_error: Exception | None = None,
    ) -> None:
        self.loaded: list[Any] = []
        self._load_error = load_error
        self.node_and_weight_bytes, self.load_model, self.read_weights = (
            FakeMethod(call)
            for call in (self._node_and_weight_bytes, self._load_model, lambda: FakeStream(error, self))
        )
        self._place = (node, size)

    async def _node_and_weight_bytes(self) -> tuple[str, int]:
        return self._place

    async def _load_model(self, chunks: Any) -> str:
        self.loaded.append(chunks)
        if self._load_error is not None:
            raise self._load_error
        return "info"


class FakeMethod:
    """An actor's method."""

    def __init__(self, call: Any) -> None:
        self.remote = call

    def options(self, num_returns: str) -> FakeMethod:
        assert num_returns == "streaming"
        return self


class FakeStream:
    """The stream of chunks of weights that a worker reads: two, or an error after the first."""

    def __init__(self, error: Exception | None, worker: FakeWorker) -> None:
        self._error = error
        self._chunks = [(worker, 0), (worker, 1)][: 1 if error else 2]

    async def __aiter__(self) -> AsyncIterator[Any]:
        for chunk in self._chunks:
            await asyncio.sleep(0)
            yield chunk

    async def completed(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with room for 10 bytes each."""
    store = {"object_store_memory": 10 / node_weights.STORE_SHARE}
    listed = [{"NodeID": name, "Resources": store} for name in ("here", "there")]
    monkeypatch.setattr(node_weights.ray, "nodes", lambda: listed)


async def load(weights: NodeWeights, *workers: FakeWorker) -> list[Any]:
    return await asyncio.gather(*(weights.load(worker) for worker in workers), return_exceptions=True)


def shared(num_workers: int = 2, **model: Any) -> NodeWeights:
    return NodeWeights(tiny_config(group={"num_workers": num_workers}, model=model))


def test_one_worker_per_node_reads_and_the_others_wait_for_it(nodes: None) -> None:
    workers = [FakeWorker("here"), FakeWorker("there"), FakeWorker("here"), FakeWorker("here")]
    assert asyncio.run(load(shared(), *workers)) == ["info"] * 4
    reader = [worker.loaded[0][0][0] for worker in workers]
    assert reader == [workers[0], workers[1], workers[0], workers[0]]
    assert all(len(worker.loaded[0]) == 2 for worker in workers)


def test_after_one_that_cannot_read_the_next_one_does(nodes: None) -> None:
    error = CheckpointError("damaged")
    broken, sound = FakeWorker(error=error), FakeWorker()
    assert asyncio.run(load(shared(), broken, sound)) == [error, "info"]
    assert broken.loaded == [] and sound.loaded == [[(sound, 0), (sound, 1)]]


def test_a_copy_that_is_gone_is_made_anew(nodes: None) -> None:
    gone = ObjectLostError("0" * 56, "", "")
    first, second, third = FakeWorker(), FakeWorker(load_error=gone), FakeWorker()

    async def one_by_one() -> list[Any]:
        weights = shared()
        return [(await load(weights, worker))[0] for worker in (first, second, third)]

    assert asyncio.run(one_by_one()) == ["info", gone, "info"]
    assert second.loaded == first.loaded and third.loaded == [[(third, 0), (third, 1)]]


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        pytest.param(shared(), 11, id="no room"),
        pytest.param(shared(num_workers=1), 1, id="one worker"),
        pytest.param(shared(load_format="dummy"), 1, id="random weights"),
    ],
)
def test_each_reads_for_itself(nodes: None, weights: NodeWeights, size: int) -> None:
    worker = FakeWorker(size=size)
    assert asyncio.run(load(weights, worker)) == ["info"]
    assert worker.loaded == [None]


def test_a_group_that_grows_begins_to_share(nodes: None) -> None:
    weights, first, second = shared(num_workers=1), FakeWorker(), FakeWorker()
    assert asyncio.run(load(weights, first)) == ["info"]
    weights.shared = True
    assert asyncio.run(load(weights, second)) == ["info"]
    assert first.loaded == [None] and second.loaded == [[(second, 0), (second, 1)]]
