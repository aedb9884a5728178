"""The central promise: the same tokens in one process and on any number of branch workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from typing import Any

import pytest

from actors.engine import RayEngine
from actors.transfer.kv_transfer import TRANSFERS
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import ProtocolError
from support.tiny_model import PROMPTS, SETTINGS, TINY_EXPERTS, tiny_config

pytestmark = pytest.mark.medium

GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "1 worker": {"group": {"num_workers": 1}},
    "4 workers, stored prefixes": {"group": {"num_workers": 4}, "model": {"prefix_cache": "exact"}},
    "3 workers, LLaDA2, stored prefixes": {
        "group": {"num_workers": 3},
        "model": {"path": str(TINY_EXPERTS["llada2"]), "prefix_cache": "exact"},
    },
    "2 workers, SDAR-MoE": {
        "group": {"num_workers": 2},
        "model": {"path": str(TINY_EXPERTS["sdar_moe"])},
    },
    "2 workers, packed weights": {"group": {"num_workers": 2}, "model": {"pack_float32": True}},
    **{
        f"2 workers, {name}, steps in parts": {
            "group": {"num_workers": 2, "transfer": name},
            "model": {"max_num_batched_tokens": 140},
        }
        for name in TRANSFERS
        if name != tiny_config().transfer
    },
}


LocalResults = Callable[[list[int], str], GenerationResult]


@cache
def local_engine(model: str, packed: bool) -> LocalEngine:
    return LocalEngine.from_config(tiny_config(model={"path": model, "pack_float32": packed}))


@cache
def local_result(model: str, packed: bool, prompt: tuple[int, ...], name: str) -> GenerationResult:
    return local_engine(model, packed).generate(prompt, SETTINGS[name], trace=True)


@pytest.fixture
def local(engine: RayEngine) -> LocalResults:
    """The result of a prompt with settings in one process, decoded once."""
    model = engine.config.model
    return lambda prompt, name: local_result(model.path, model.pack_float32, tuple(prompt), name)


@pytest.fixture(
    scope="module",
    params=[
        "4 workers, stored prefixes",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in GROUPS
            if "parts" in name or "packed" in name
        ),
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("1 worker", "3 workers, LLaDA2, stored prefixes", "2 workers, SDAR-MoE")
        ),
    ],
)
def engine(request: pytest.FixtureRequest) -> Iterator[RayEngine]:
    with RayEngine.from_config(tiny_config(**GROUPS[request.param])) as engine:
        yield engine


def with_trace(result: GenerationResult) -> tuple[object, ...]:
    """All that must not depend on the deployment, scores included."""
    return result.token_ids, result.finish_reason, result.steps, result.forwards, result.trace


@pytest.mark.parametrize("prompts", [1, pytest.param(len(PROMPTS), marks=pytest.mark.nightly)])
def test_same_tokens_in_flight_together(engine: RayEngine, local: LocalResults, prompts: int) -> None:
    """Requests with all settings, each on that many of the prompts, share the group's steps."""
    names = list(SETTINGS)
    pairs = [
        (PROMPTS[(at + more) % len(PROMPTS)], names[at])
        for at in range(len(names))
        for more in range(prompts)
    ]
    sessions = [engine.create_session(prompt, SETTINGS[name]) for prompt, name in pairs]
    for index, result in engine.run(sessions, trace=True):
        assert isinstance(result, GenerationResult)
        assert with_trace(result) == with_trace(local(*pairs[index])), pairs[index]
    assert_caches_agree(engine)


def test_the_number_of_drafts_by_measured_costs_changes_no_token(
    engine: RayEngine, local: LocalResults
) -> None:
    auto = SETTINGS["verified"].replace(num_branches="auto")
    results = engine.generate(PROMPTS, auto)
    assert [r.token_ids for r in results] == [local(prompt, "verified").token_ids for prompt in PROMPTS]


def test_prefixes_are_stored_as_the_configuration_says(engine: RayEngine, local: LocalResults) -> None:
    settings, before = SETTINGS["block_diffusion"], engine.status()
    for prompt in (PROMPTS[2], [*PROMPTS[2][:30], 3]):
        assert engine.generate(prompt, settings).token_ids == local(prompt, "block_diffusion").token_ids
    stored, now = engine.config.model.prefix_cache != "none", engine.status()
    assert now.prefix_hits - before.prefix_hits >= stored
    assert now.prefix_positions - before.prefix_positions >= 24 * stored
    assert stored or now.prefix_hits == 0


def test_a_stream_ends_with_what_generate_returns_and_may_be_left(
    engine: RayEngine, local: LocalResults
) -> None:
    settings = SETTINGS["two_phase"]
    with closing(engine.stream(PROMPTS[0], settings)) as left:
        next(left)
    *chunks, last = engine.stream(PROMPTS[0], settings)
    assert last.result is not None
    assert last.result.token_ids == local(PROMPTS[0], "two_phase").token_ids
    assert not any(chunk.result for chunk in chunks) and len(chunks) == last.step - 1
    assert list(engine.start_phases) == ["checkpoint", "master", "workers", "model", "join"]
    assert all(seconds > 0 for seconds in engine.start_phases.values())
    assert repr(engine).endswith(f"device='cpu', workers={engine.config.group.num_workers})")


def test_checksums_are_refused_while_busy(engine: RayEngine) -> None:
    events = engine.events([engine.create_session(PROMPTS[0], SETTINGS["two_phase"])])
    next(events)
    with pytest.raises(ProtocolError, match="in flight"):
        engine.checksums()
    assert len(list(events)) > 0


def assert_caches_agree(engine: RayEngine) -> None:
    first, *others = engine.checksums()
    assert any(slot.spans for slot in first), "nothing was ever cached: the comparison would be empty"
    for other in others:
        assert other == first
