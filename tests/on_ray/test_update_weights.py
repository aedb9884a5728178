"""Weights of a group that change while it runs: after any loss of workers or master all have the same version."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from actors.async_engine import AsyncRayEngine
from actors.engine import RayEngine
from actors.workers.weight_broadcast import WeightBroadcast
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError, RequestCancelledError, SettingsError, TransferError
from support.fault_injection import FaultInjection
from support.group_under_test import wait_for_status
from support.processes import kill_actors
from support.tiny_model import PROMPTS, SETTINGS, TINY_MODEL, tiny_config
from support.waiting import wait_until

HEAD = "model.layers.0.mlp.down_proj.weight"
KINDS = ("two_phase", "verified")


def changed_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = load_file(TINY_MODEL / "model.safetensors")
    return {name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in sorted(tensors.items())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "changed"
    shutil.copytree(TINY_MODEL, folder)
    save_file(changed_tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tokens_of(engine: LocalEngine | RayEngine) -> list[list[int]]:
    return [engine.generate(prompt, SETTINGS[kind]).token_ids for prompt in PROMPTS[:2] for kind in KINDS]


@pytest.fixture(scope="module")
def old() -> list[list[int]]:
    return tokens_of(LocalEngine.from_config(tiny_config()))


@pytest.fixture(scope="module")
def new(folder: Path, old: list[list[int]]) -> list[list[int]]:
    tokens = tokens_of(LocalEngine.from_config(tiny_config(model={"path": str(folder)})))
    assert all(one != other for one, other in zip(old, tokens, strict=True))
    return tokens


@pytest.mark.medium
@pytest.mark.parametrize(
    "group", [{"num_workers": 2}, {"num_workers": 1, "tensor_parallel_size": 2}], ids=["2", "tp2"]
)
def test_a_group_has_the_tokens_of_a_new_one(
    group: dict[str, int], folder: Path, tmp_path: Path, old: list[list[int]], new: list[list[int]]
) -> None:
    with RayEngine.from_config(tiny_config(group=group)) as engine:
        assert engine.weight_version == 0
        assert engine.update_weights(folder) == engine.weight_version == 1
        assert tokens_of(engine) == new
        assert engine.update_weights(load_file(TINY_MODEL / "model.safetensors"), version=5) == 5
        assert tokens_of(engine) == old
        spoiled = {**changed_tensors(), HEAD: torch.zeros(3, 3)}
        with pytest.raises(CheckpointError, match=HEAD):
            engine.update_weights(spoiled)
        with pytest.raises(SettingsError, match="version"):
            engine.update_weights(folder, version=5)
        assert tokens_of(engine) == old
        engine.update_weights({HEAD: changed_tensors()[HEAD]})
        engine.update_weights({name: tensor for name, tensor in changed_tensors().items() if name != HEAD})
        assert tokens_of(engine) == new
        for level in (1, 2):
            engine.sleep(level)
            assert engine.is_sleeping()
            engine.wake_up()
            assert tokens_of(engine) == new
        engine.reset_prefix_cache()
        if group["num_workers"] > 1:
            engine.resize(3)
            wait_for_status(engine, lambda status: status.workers == 3, "the third worker")
            assert tokens_of(engine) == new
        kill_actors("Master")
        assert tokens_of(engine) == new
        assert engine.weight_version == 7
        moving = Path(shutil.copytree(folder, tmp_path / "moving"))
        engine.update_weights(moving)
        engine.sleep(2)
        moving.rename(tmp_path / "moved")
        with pytest.raises(CheckpointError, match="moving: no such folder"):
            engine.wake_up()
        assert engine.is_sleeping()
        (tmp_path / "moved").rename(moving)
        engine.wake_up()
        assert tokens_of(engine) == new


@ray.remote(num_cpus=0)
class Trainer:
    def broadcast(self) -> WeightBroadcast:
        self._broadcast = WeightBroadcast(changed_tensors())
        return self._broadcast


@pytest.mark.medium
def test_a_trainers_actor_sends_tensors_without_a_file(new: list[list[int]]) -> None:
    trainer = Trainer.remote()  # type: ignore[attr-defined]
    with RayEngine.from_config(tiny_config()) as engine:
        assert engine.update_weights(ray.get(trainer.broadcast.remote())) == 1
        assert tokens_of(engine) == new
        ray.kill(trainer)
        kill_actors("Master")
        assert tokens_of(engine) == new


@pytest.mark.medium
def test_a_trainer_that_has_ended_changes_nothing(old: list[list[int]]) -> None:
    trainer = Trainer.remote()  # type: ignore[attr-defined]
    broadcast = ray.get(trainer.broadcast.remote())
    ray.kill(trainer)
    with RayEngine.from_config(tiny_config()) as engine:
        with pytest.raises(TransferError, match="cannot be reached"):
            engine.update_weights(broadcast)
        assert engine.weight_version == 0
        assert tokens_of(engine) == old


@contextmanager
def two_workers(tmp_path: Path) -> Iterator[tuple[RayEngine, FaultInjection]]:
    (faults_folder := tmp_path / "faults").mkdir()
    faults = FaultInjection(faults_folder)
    with RayEngine.from_config(tiny_config(), runner_factory=faults) as engine:
        yield engine, faults


def update_in_flight(engine: RayEngine, folder: Path, running: str = "keep") -> list[int]:
    """Update after the first step of a request; returns the versions of its steps."""
    events = engine.events([engine.create_session(PROMPTS[2], SETTINGS["two_phase"])])
    outcomes = [next(events).outcome]  # type: ignore[union-attr]
    engine.update_weights(folder, running=running)  # type: ignore[arg-type]
    outcomes += [event.outcome for event in events]  # type: ignore[union-attr]
    assert outcomes[-1].finish_reason is not None
    return [outcome.weight_version for outcome in outcomes]


@pytest.mark.medium
@pytest.mark.parametrize("running", ["keep", pytest.param("wait", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("point", ["stage", "commit", "committed", "step"])
def test_a_worker_is_lost_at_any_point(
    point: str, running: str, tmp_path: Path, folder: Path, new: list[list[int]]
) -> None:
    with two_workers(tmp_path) as (engine, faults):
        faults.inject(point)
        versions = update_in_flight(engine, folder, running)
        assert versions == sorted(versions)
        assert set(versions) <= ({0, 1} if running == "keep" else {0})
        assert not faults.pending
        assert tokens_of(engine) == new
        wait_for_status(engine, lambda status: status.workers == 2, "the replacement")
        assert tokens_of(engine) == new


@pytest.mark.medium
@pytest.mark.parametrize("running", ["keep", pytest.param("wait", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("point", ["stage", "between", "commit", "committed"])
def test_the_master_is_lost_at_any_point(
    point: str,
    running: str,
    tmp_path: Path,
    folder: Path,
    new: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker stops at the point, so that the master is killed there."""
    with two_workers(tmp_path) as (engine, faults):
        group, begun = engine._engine._group, []
        call = group.call

        async def losing(method: str, *arguments: Any) -> Any:
            if method == ("commit_weights" if point == "between" else "prepare_weights") and not begun:
                begun.append(method)
                if point == "between":
                    kill_actors("Master")
                else:
                    faults.inject(point, sig=signal.SIGSTOP)
                    asyncio.get_running_loop().run_in_executor(None, lose)
            return await call(method, *arguments)

        def lose() -> None:
            wait_until(faults.triggered, f"a worker at {point}")
            kill_actors("Master")

        monkeypatch.setattr(group, "call", losing)
        versions = update_in_flight(engine, folder, running)
        assert begun
        assert versions == sorted(versions)
        assert engine.weight_version == 1
        assert tokens_of(engine) == new


@pytest.mark.medium
def test_requests_wait_for_an_asyncio_program(folder: Path, new: list[list[int]]) -> None:
    async def run() -> None:
        async with await AsyncRayEngine.start(tiny_config()) as engine:
            session = engine.create_session(PROMPTS[0], SETTINGS["two_phase"])
            async with aclosing(engine.events([session])) as events:
                await anext(events)
                await engine.update_weights(folder, running="abort")
                *_, last = [event async for event in events]
            assert isinstance(last.error, RequestCancelledError)  # type: ignore[union-attr]
            await engine.sleep()
            assert await engine.is_sleeping()
            sleeping = asyncio.create_task(engine.generate(PROMPTS[0], SETTINGS["two_phase"]))
            await engine.pause()
            await engine.wake_up()
            assert await engine.is_paused()
            assert (await engine.status()).in_flight == 0
            kill_actors("Master")  # the next group is paused as well
            while not engine.lost_groups or engine.resuming:
                await asyncio.sleep(0.05)
            while not (await engine.status()).waiting:
                await asyncio.sleep(0.05)
            assert not sleeping.done()
            await engine.resume()
            assert (await sleeping).token_ids == new[0]
            # An update that is given up leaves no trace.
            events = engine.events([engine.create_session(PROMPTS[0], SETTINGS["two_phase"])])
            await anext(events)
            await engine.pause("keep")
            with pytest.raises(SettingsError, match="pause"):
                await engine.update_weights(TINY_MODEL)
            await engine.resume()
            *_, end = [event async for event in events]
            assert end.outcome.finish_reason is not None  # type: ignore[union-attr]
            assert engine.weight_version == 1
            events = engine.events([engine.create_session(PROMPTS[0], SETTINGS["two_phase"])])
            await anext(events)
            waiting = asyncio.create_task(engine.update_weights(TINY_MODEL))
            await asyncio.sleep(0)
            waiting.cancel()
            *_, end = [event async for event in events]
            assert end.outcome.weight_version == 1  # type: ignore[union-attr]
            assert (await engine.generate(PROMPTS[0], SETTINGS["two_phase"])).token_ids == new[0]

    asyncio.run(run())
