"""Holds of a LocalEngine: the end of requests before an update, pauses and sleeps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_ray import LocalEngine
from lopa_ray.errors import CheckpointError, LopaError, RequestCancelledError, SettingsError
from support.changed_weights import PROMPT, changed_tensors, folder_of, fresh, tokens

torch.set_num_threads(1)


def test_requests_that_have_begun_end_first_and_others_wait(changed_folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", max_num_seqs=1) as engine:
        old = tokens(engine)
        begun = engine.stream(PROMPT, trajectory=True)
        next(begun)
        waiting = engine.events([engine.create_session(PROMPT)])
        holding, hold = threading.Event(), engine._hold
        engine._hold = lambda *hold_for: (holding.set(), hold(*hold_for))  # type: ignore[assignment, func-returns-value]
        with engine._changed:  # no step, and so no hold, before this thread waits for an event
            threading.Thread(target=engine.update_weights, args=(changed_folder,)).start()
            assert holding.wait(60)
        last = [event.outcome for event in waiting][-1]  # type: ignore[union-attr]
        assert engine.weight_version == 1
        assert last.weight_version == 1
        *_, chunk = begun
        assert chunk.result is not None
        assert chunk.result.token_ids == old
        trajectory = chunk.result.trajectory
        assert trajectory is not None
        assert (trajectory.weight_version, trajectory.weight_versions) == (0, None)
        assert tokens(engine) == fresh(changed_folder)


def test_aborted_requests_end_and_others_wait(changed_folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", max_num_seqs=1) as engine:
        begun, waiting = engine.stream(PROMPT), engine.events([engine.create_session(PROMPT)])
        next(begun)
        engine.update_weights(changed_folder, running="abort")
        with pytest.raises(RequestCancelledError):
            list(begun)
        assert not any(hasattr(event, "error") for event in waiting)
        assert tokens(engine) == fresh(changed_folder)


def test_no_step_begins_during_a_pause(demo_engine: LocalEngine, changed_folder: Path) -> None:
    old = tokens(demo_engine)
    chunks = demo_engine.stream(PROMPT)
    next(chunks)
    demo_engine.pause("keep")
    assert demo_engine.is_paused()
    with pytest.raises(SettingsError, match="pause"):
        demo_engine.update_weights(changed_folder, running="wait")
    assert demo_engine.weight_version == 0
    ended = threading.Event()
    results: list[list[int]] = []

    def rest() -> None:
        results.append(list(chunks)[-1].result.token_ids)  # type: ignore[union-attr]
        ended.set()

    threading.Thread(target=rest, daemon=True).start()
    runs = demo_engine.runner.launch
    demo_engine.runner.launch = lambda *_: pytest.fail("a step during a pause")  # type: ignore[method-assign, assignment]
    assert not ended.wait(0.05)
    demo_engine.pause()
    demo_engine.runner.launch = runs  # type: ignore[method-assign]
    demo_engine.resume()
    assert ended.wait(60)
    assert results == [old]
    demo_engine.pause()
    demo_engine.update_weights(changed_folder)
    assert demo_engine.is_paused()
    demo_engine.resume()
    assert not demo_engine.is_paused()
    assert tokens(demo_engine) == fresh(changed_folder)


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_gives_memory_back_and_the_same_tokens(level: int, changed_folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", max_model_len=512) as engine:
        engine.update_weights(changed_folder)
        expected = tokens(engine)
        chunks = engine.stream(PROMPT)
        next(chunks)
        cache = engine.runner.cache
        engine.sleep(level)
        assert engine.is_sleeping()
        if level == 1:
            assert cache.data.untyped_storage().nbytes() == 0
        else:
            assert not hasattr(engine, "runner")
        engine.sleep(level)
        engine.wake_up()
        assert not engine.is_sleeping()
        assert list(chunks)[-1].result.token_ids == expected  # type: ignore[union-attr]
        assert tokens(engine) == expected


@pytest.mark.parametrize("level", [1, 2])
def test_weights_may_change_during_a_sleep(
    level: int, demo_engine: LocalEngine, changed_folder: Path
) -> None:
    with pytest.raises(SettingsError, match="level"):
        demo_engine.sleep(3)
    demo_engine.sleep(level)
    demo_engine.update_weights(changed_folder)
    assert demo_engine.is_sleeping()
    demo_engine.wake_up()
    assert tokens(demo_engine) == fresh(changed_folder)


def test_a_folder_that_is_gone_is_named_and_the_sleep_goes_on(
    demo_engine: LocalEngine, tmp_path: Path
) -> None:
    source = folder_of(changed_tensors(), tmp_path / "changed")
    demo_engine.update_weights(source)
    expected = tokens(demo_engine)
    demo_engine.sleep(2)
    source.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="changed: no such folder"):
        demo_engine.wake_up()
    assert demo_engine.is_sleeping()
    (tmp_path / "elsewhere").rename(source)
    demo_engine.wake_up()
    assert tokens(demo_engine) == expected


def test_a_step_that_fails_meanwhile_ends_its_own_request_alone(
    demo_engine: LocalEngine, changed_folder: Path
) -> None:
    chunks = demo_engine.stream(PROMPT)
    next(chunks)

    def fail(*_: Any) -> None:
        raise LopaError("broken")

    launch = demo_engine.runner.launch
    demo_engine.runner.launch = fail  # type: ignore[method-assign, assignment]
    demo_engine.update_weights(changed_folder)
    with pytest.raises(LopaError, match="broken"):
        list(chunks)
    demo_engine.runner.launch = launch  # type: ignore[method-assign]
    assert tokens(demo_engine) == fresh(changed_folder)
