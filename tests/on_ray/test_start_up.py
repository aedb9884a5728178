"""The weights of a model: read once per node, mapped by all workers of all groups there, and by their successors."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from groups import MODEL, PROMPTS, SETTINGS, config
from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError
from trials import PATIENCE_S, Oracle, Trial, actor_pids, end, essence

from actors import node_weights
from actors.branch_worker import Arrival, default_runner
from actors.engine import RayEngine
from actors.node_weights import NodeWeights
from actors.weights_keeper import WeightsKeeper, weights_keeper
from lopa_ray.config import Config
from lopa_ray.errors import CheckpointError
from lopa_ray.model.parallel import Parallel
from lopa_ray.model.weights import Weights


@dataclass(frozen=True)
class Witness:
    """A runner factory that notes, per process, whether the model lies in the object store's memory."""

    folder: Path

    def __call__(self, config: Config, weights: Weights | None, parallel: Parallel) -> Any:
        runner = default_runner(config, weights, parallel)
        addresses = [parameter.data_ptr() for parameter in runner.model.parameters()]
        (self.folder / str(os.getpid())).write_text(str(all(map(_in_object_store, addresses))))
        return runner

    def notes(self) -> dict[int, str]:
        return {int(path.name): path.read_text() for path in self.folder.iterdir()}


def _in_object_store(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, file = line.split(maxsplit=5)
        first, last = (int(edge, 16) for edge in span.split("-"))
        if first <= address < last:
            return "plasma" in file
    raise AssertionError("memory that is not mapped")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mappings")
def test_workers_map_one_copy_and_so_does_who_replaces_them(tmp_path: Path, oracle: Oracle) -> None:
    witness = Witness(tmp_path)
    with RayEngine.from_config(config(group={"num_workers": 2}), runner_factory=witness) as engine:
        trial = Trial(engine, oracle)
        first = witness.notes()
        assert list(first.values()) == ["True"] * 2
        for process in first:  # the one that has read them, too
            trial.batch(2, during=lambda process=process: os.kill(process, signal.SIGKILL))
        trial.until(lambda: engine.status().workers == 2)
    notes = witness.notes()
    assert len(notes) >= 4 and set(notes.values()) == {"True"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One of its own, so that nobody has read it before."""
    return Path(shutil.copytree(MODEL, tmp_path / "checkpoint"))


@pytest.fixture
def keepers_of_others() -> set[int]:
    return set(actor_pids("WeightsKeeper"))


def spoil(checkpoint: Path) -> os.stat_result:
    """Whoever reads the weights from now on finds none, though the files look as before; returns how they looked."""
    (file,) = checkpoint.glob("*.safetensors")
    before = file.stat()
    file.write_bytes(bytes(before.st_size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    return before


def test_groups_share_a_copy_and_so_does_who_takes_over_from_a_lost_one(
    checkpoint: Path, oracle: Oracle, keepers_of_others: set[int]
) -> None:
    alone = config(group={"num_workers": 1}, model={"path": str(checkpoint)})
    request = (0, "two_phase")

    def decoded(engine: RayEngine) -> object:
        result = engine.generate(PROMPTS[request[0]], SETTINGS[request[1]])
        return essence(result)

    with RayEngine.from_config(alone) as first:
        spoil(checkpoint)
        with RayEngine.from_config(alone) as second:
            assert decoded(first) == decoded(second) == oracle[request]
            for pid in actor_pids("Master"):
                end(pid, signal.SIGKILL)
            assert decoded(first) == decoded(second) == oracle[request]
        os.utime(next(checkpoint.glob("*.safetensors")))
        with pytest.raises(CheckpointError):  # another file now, and read as such
            RayEngine.from_config(alone)
    deadline = time.monotonic() + PATIENCE_S
    while {*actor_pids("WeightsKeeper")} - keepers_of_others:
        assert time.monotonic() < deadline, "the copy stays though nobody uses it"
        time.sleep(0.1)


@pytest.mark.parametrize(
    "kind", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)], ids=["killed", "stopped"]
)
def test_a_group_goes_on_without_who_keeps_the_copy(
    kind: signal.Signals, checkpoint: Path, oracle: Oracle, keepers_of_others: set[int]
) -> None:
    shared = config(group={"num_workers": 2}, model={"path": str(checkpoint)})
    with RayEngine.from_config(shared) as engine:
        trial = Trial(engine, oracle)
        for _ in range(2):
            (keeper,) = {*actor_pids("WeightsKeeper")} - keepers_of_others
            end(keeper, kind)
            trial.batch(2, during=lambda: end(actor_pids("BranchWorker")[0], signal.SIGKILL))
            trial.until_there_are(2)


class Worker:
    """Answers as a worker actor does."""

    def __init__(
        self,
        node: str = "here",
        size: int = 1,
        error: Exception | None = None,
        load_error: Exception | None = None,
        stamp: int = 0,
    ) -> None:
        self.loaded: list[Any] = []
        self._load_error = load_error
        self.arrive, self.load, self.publish = (
            Method(call) for call in (self._arrive, self._load, lambda: Published(error, self))
        )
        self._arrival = Arrival(node, size, (("weights", 1, stamp),))

    async def _arrive(self) -> Arrival:
        return self._arrival

    async def _load(self, parcels: Any) -> str:
        self.loaded.append(parcels)
        if self._load_error is not None:
            raise self._load_error
        return "info"

    @property
    def reader(self) -> Worker:
        """Who read what this one has loaded."""
        ((first, _), (second, _)) = self.loaded[0]
        assert first is second
        return first


class Method:
    """An actor's method."""

    def __init__(self, call: Any) -> None:
        self.remote = call

    def options(self, num_returns: str) -> Method:
        assert num_returns == "streaming"
        return self


class Published:
    """The stream of parcels that a worker reads: two, or an error after the first."""

    def __init__(self, error: Exception | None, worker: Worker) -> None:
        self._error = error
        self._parcels = [(worker, 0), (worker, 1)][: 1 if error else 2]

    async def __aiter__(self) -> AsyncIterator[Any]:
        for parcel in self._parcels:
            await asyncio.sleep(0)
            yield parcel

    async def completed(self) -> None:
        if self._error is not None:
            raise self._error


class Keeper:
    """A keeper as an actor: errors come wrapped, or it hangs, or is gone."""

    def __init__(self, *, alive: bool = True, hangs: bool = False) -> None:
        self._kept = WeightsKeeper()
        self.alive = alive
        self._hangs = hangs
        self.ping, self.copy, self.forget = map(Method, (self._ping, self._copy, self._kept.forget))

    async def _ping(self) -> None:
        if not self.alive:
            raise ActorDiedError
        if self._hangs:
            await asyncio.sleep(60)

    async def _copy(self, *call: Any) -> Any:
        try:
            return await self._kept.copy(*call)
        except Exception as error:
            raise RayTaskError("copy", "", error).as_instanceof_cause() from None


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> list[Keeper]:
    """What those who look for a keeper find, the last one for good; two nodes with room for 10 bytes each."""
    found = [Keeper()]
    monkeypatch.setattr(
        node_weights, "weights_keeper", lambda _: found.pop(0) if len(found) > 1 else found[0]
    )
    store = {"object_store_memory": 10 / node_weights.STORE_SHARE}
    nodes = [{"NodeID": name, "Resources": store} for name in ("here", "there")]
    monkeypatch.setattr(node_weights.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(node_weights.ray, "kill", lambda keeper: setattr(keeper, "alive", False))
    monkeypatch.setattr(node_weights, "ANSWER_S", 0.1)
    return found


def load(*rounds: list[Worker], groups: int = 1) -> list[list[Any]]:
    """What loading comes to, or raises: of the workers of a round together, taking turns between groups."""

    async def one_by_one() -> list[list[Any]]:
        weights = [NodeWeights(config()) for _ in range(groups)]
        results = []
        for workers in rounds:
            loads = (weights[at % groups].load(worker) for at, worker in enumerate(workers))
            results.append(await asyncio.gather(*loads, return_exceptions=True))
            await asyncio.sleep(0)
        return results

    return asyncio.run(one_by_one())


@pytest.mark.parametrize("groups", [1, 3])
def test_one_worker_per_node_reads_and_the_others_wait_for_it(keepers: list[Keeper], groups: int) -> None:
    workers = [Worker("here"), Worker("there"), Worker("here"), Worker("here")]
    assert load(workers, groups=groups) == [["info"] * 4]
    assert [worker.reader for worker in workers] == [workers[0], workers[1], workers[0], workers[0]]


@pytest.mark.parametrize("error", [CheckpointError("damaged"), ActorDiedError()])
def test_after_one_that_cannot_read_the_next_one_does(keepers: list[Keeper], error: Exception) -> None:
    broken, sound = Worker(error=error), Worker()
    assert load([broken, sound]) == [[error, "info"]]
    assert broken.loaded == [] and sound.reader is sound


def test_a_copy_that_is_gone_is_made_anew(keepers: list[Keeper]) -> None:
    gone = ObjectLostError("0" * 56, "", "")
    first, second, third = Worker(), Worker(load_error=gone), Worker()
    assert load([first], [second], [third]) == [["info"], [gone], ["info"]]
    assert second.reader is first and third.reader is third


def test_other_files_are_read_anew(keepers: list[Keeper]) -> None:
    first, second, third = Worker(), Worker(stamp=1), Worker(stamp=1)
    assert load([first], [second], [third]) == [["info"]] * 3
    assert second.reader is second and third.reader is second


def test_a_keeper_that_is_gone_is_replaced_and_one_that_does_not_stay_done_without(
    keepers: list[Keeper],
) -> None:
    keepers[:] = [Keeper(alive=False), Keeper()]
    first, second = Worker(), Worker()
    assert load([first], [second]) == [["info"]] * 2
    assert first.reader is second.reader is first
    keepers[:] = [Keeper(alive=False)]
    third = Worker()
    assert load([third]) == [["info"]]
    assert third.loaded == [None]


def test_without_room_each_reads_for_itself(keepers: list[Keeper]) -> None:
    worker = Worker(size=11)
    assert load([worker]) == [["info"]]
    assert worker.loaded == [None]


def test_random_weights_have_no_keeper() -> None:
    worker = Worker()
    weights = NodeWeights(config(model={"load_format": "dummy"}))
    assert asyncio.run(weights.load(worker)) == "info"
    assert worker.loaded == [None]


def test_a_keeper_is_of_one_model() -> None:
    kept = [weights_keeper(config(model=model)) for model in ({}, {"slots": 3}, {"dtype": "bfloat16"})]
    assert kept[0] == kept[1] != kept[2]
