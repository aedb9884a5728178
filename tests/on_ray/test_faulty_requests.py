"""Requests that make workers fail: each ends with its own error, and no other request notices."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from actors.engine import RayEngine
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.errors import ProtocolError, ScoreError, WorkerError
from support.faulty_runner import HANG_S, Poison, faulty_runner, small_memory_runner
from support.group_under_test import ReferenceResults, comparable, nightly, wait_for_status
from support.processes import actor_pids
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

pytestmark = pytest.mark.slow

NO_MEMORY = r"CUDA out of memory\. Tried.* needs more memory than there is: lower num_branches"

ERRORS = {
    Poison.ERROR: (WorkerError, "RuntimeError: injected fault"),
    Poison.OUT_OF_MEMORY: (WorkerError, NO_MEMORY),
    Poison.ERROR_BEFORE_BROADCAST: (WorkerError, "injected fault"),
    Poison.NAN: (ScoreError, r"scores in step 1 are NaN"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    with RayEngine.from_config(tiny_config(), runner_factory=faulty_runner) as running:
        yield running


def error_of(engine: RayEngine, reference: ReferenceResults, poison: Poison) -> object:
    """What the request of a poisoned prompt ends with, beside others that have their tokens."""
    prompts = [*PROMPTS[:2], [int(poison), 5], *PROMPTS[2:]]
    results = dict(engine.run([engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in prompts]))
    error = results.pop(2)
    for index, (_, result) in enumerate(sorted(results.items())):
        assert isinstance(result, GenerationResult), result
        assert comparable(result)[0] == reference[index, "two_phase"][0]
    assert len(results) == len(PROMPTS)
    return error


@pytest.mark.parametrize(
    "poison",
    [
        Poison.ERROR_BEFORE_BROADCAST,
        Poison.NAN,
        *nightly(Poison.ERROR, Poison.OUT_OF_MEMORY),
    ],
)
def test_a_fault_ends_the_request_that_caused_it_and_no_other(
    engine: RayEngine, reference: ReferenceResults, poison: Poison
) -> None:
    error_type, message = ERRORS[poison]
    error = error_of(engine, reference, poison)
    assert isinstance(error, error_type) and re.search(message, str(error))
    # A worker that is lost besides, as on a machine that is too busy, is replaced, and no request notices that either.
    first, *others = engine.checksums()
    assert others == [first] * len(others)
    wait_for_status(engine, lambda status: status.workers == 2, "two workers")


@pytest.mark.nightly
def test_workers_whose_device_fails_are_replaced_and_the_request_that_caused_it_ends(
    engine: RayEngine, reference: ReferenceResults
) -> None:
    before = actor_pids("BranchWorker")
    error = error_of(engine, reference, Poison.ILLEGAL_ACCESS)
    assert isinstance(error, WorkerError) and "each time that this request's step was run" in str(error)
    assert not set(before) & set(actor_pids("BranchWorker"))
    assert comparable(engine.generate(PROMPTS[0], SETTINGS["two_phase"])) == reference[0, "two_phase"]


@pytest.mark.nightly
def test_a_step_that_lacks_memory_is_split_and_not_tried_whole_again(reference: ReferenceResults) -> None:
    config = tiny_config(group={"num_workers": 1}, model={"max_num_seqs": 4})
    with RayEngine.from_config(config, runner_factory=small_memory_runner) as engine:
        sessions = [engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS[:4]]
        results = dict(engine.run(sessions))
        for index, result in results.items():
            assert isinstance(result, GenerationResult), result
            assert comparable(result)[0] == reference[index, "two_phase"][0]
        first = engine.status()
        assert 1 <= first.out_of_memory_steps <= 4 and first.failed_steps == 0
        assert first.max_step_rows is not None and first.steps > 10 * first.out_of_memory_steps
        dict(engine.run([engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS[:4]]))
        assert engine.status().out_of_memory_steps - first.out_of_memory_steps <= 1


def test_a_session_that_is_finished_already_is_refused_and_the_engine_goes_on(
    engine: RayEngine, reference: ReferenceResults
) -> None:
    prompt, settings = PROMPTS[0], SETTINGS["two_phase"]
    empty = engine.create_session(prompt, LopaSettings(max_new_tokens=0))
    assert empty.finished
    with pytest.raises(ProtocolError, match="finished already"):
        list(engine.events([engine.create_session(prompt, settings), empty]))
    assert comparable(engine.generate(prompt, settings)) == reference[0, "two_phase"]


@pytest.mark.nightly
def test_a_request_that_hangs_every_worker_ends_when_it_has_done_so_to_three_groups() -> None:
    slow = tiny_config(group={"step_timeout_s": 1.0})
    with RayEngine.from_config(slow, runner_factory=faulty_runner) as engine:
        began = time.monotonic()
        with pytest.raises(WorkerError, match=r"at last alone: .* did not answer a step within 1 s"):
            engine.generate([int(Poison.HANG), 5], SETTINGS["two_phase"])
        assert time.monotonic() - began < 2 * HANG_S
