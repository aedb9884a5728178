"""Groups of a job that are lost, and chunks that kill their groups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cluster.jobs.work_queue
from cluster.batch.lines import OpenAILine, PromptLine
from cluster.batch.source import Chunk
from cluster.jobs.group import JobGroup
from cluster.jobs.work_queue import WorkQueue
from lopa_ray.engine.config import Config
from lopa_ray.errors import CapacityError, CheckpointError, WorkerLostError
from support.fake_job_group import (
    EXIT_ONCE_PREFIX,
    EXIT_PROMPT,
    CapacityOne,
    CapacityZero,
    FakeJobGroup,
    LostBeforeFirstStep,
)
from support.tool_checkpoint import write_tool_checkpoint

pytestmark = pytest.mark.slow


def make_chunks(prompts: list[str], size: int = 2) -> Iterator[Chunk]:
    for index, start in enumerate(range(0, len(prompts), size)):
        lines = prompts[start : start + size]
        yield Chunk(index, tuple(PromptLine(start + at, prompt) for at, prompt in enumerate(lines)))


def decode(queue: WorkQueue, chunks: Iterator[Chunk]) -> dict[int, str]:
    """Line → text; fails if a line comes twice."""
    text_of: dict[int, str] = {}
    for _, decoded in queue.run(chunks):
        for row in map(json.loads, decoded.rows):
            assert row["line"] not in text_of
            text_of[row["line"]] = row["text"]
    return text_of


@pytest.fixture
def losses() -> list[str]:
    return []


@pytest.fixture
def queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, losses: list[str], request: pytest.FixtureRequest
) -> Iterator[WorkQueue]:
    """Two groups of stand-ins; a parameter is another class of groups."""
    group_class: Any = getattr(request, "param", FakeJobGroup)
    monkeypatch.setattr(cluster.jobs.work_queue, "JobGroup", group_class)
    config = Config.parse({"model": {"path": str(tmp_path), "max_num_seqs": 2}, "group": {"num_cpus": 0.5}})
    queue = WorkQueue(config, 2, raw=True, on_group_lost=losses.append, on_poll=lambda groups: None)
    yield queue
    queue.close()


def test_a_lost_group_is_replaced_and_its_chunks_are_decoded_once(
    queue: WorkQueue, losses: list[str], tmp_path: Path
) -> None:
    prompts = [f"prompt {number}" for number in range(30)]
    prompts[5] = f"{EXIT_ONCE_PREFIX}{tmp_path / 'first'}"
    prompts[20] = f"{EXIT_ONCE_PREFIX}{tmp_path / 'second'}"
    assert decode(queue, make_chunks(prompts)) == dict(enumerate(prompts))
    assert len(losses) == 2 and not queue.abandoned


@pytest.mark.nightly
def test_an_openai_line_whose_group_was_lost_before_it_began_is_decoded_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, losses: list[str]
) -> None:
    write_tool_checkpoint(tmp_path)
    monkeypatch.setattr(cluster.jobs.work_queue, "JobGroup", LostBeforeFirstStep)
    overrides = {"model": {"path": str(tmp_path), "max_model_len": 64}, "decode": {"max_new_tokens": 4}}
    config = Config.load("demo", overrides)
    queue = WorkQueue(config, 1, raw=True, on_group_lost=losses.append, on_poll=lambda groups: None)
    body = {"model": "any", "prompt": "a", "max_tokens": 4, "n": 2, "temperature": 1.0}
    lines = (OpenAILine(1, "mine", "/v1/completions", body),)
    try:
        ((chunk, result),) = queue.run(iter([Chunk(0, lines)]))
    finally:
        queue.close()
    assert losses == ["a group was lost and is replaced: the group was lost"]
    assert chunk.lines == lines and not queue.abandoned and not result.failures
    (row,) = map(json.loads, result.rows)
    assert row["custom_id"] == "mine" and row["error"] is None
    assert row["response"]["status_code"] == 200
    assert len(row["response"]["body"]["choices"]) == 2


@pytest.mark.nightly
def test_a_chunk_that_kills_its_groups_is_given_up_alone(queue: WorkQueue, losses: list[str]) -> None:
    prompts = [f"prompt {number}" for number in range(20)]
    prompts[6] = EXIT_PROMPT
    text_of = decode(queue, make_chunks(prompts))
    assert text_of == {line: prompt for line, prompt in enumerate(prompts) if line not in (6, 7)}
    assert [chunk.index for chunk in queue.abandoned] == [3]
    assert len(losses) == 3


@pytest.mark.parametrize("queue", [CapacityOne], indirect=True)
@pytest.mark.nightly
def test_it_goes_on_with_the_groups_for_which_there_is_room(queue: WorkQueue, losses: list[str]) -> None:
    prompts = [f"prompt {number}" for number in range(200)]
    assert decode(queue, make_chunks(prompts, 1)) == dict(enumerate(prompts))
    assert losses in ([], ["going on with 1 groups: no room"])


@pytest.mark.parametrize("queue", [CapacityZero], indirect=True)
@pytest.mark.nightly
def test_without_room_for_any_group_it_ends(queue: WorkQueue) -> None:
    with pytest.raises(CapacityError, match="no room"):
        decode(queue, make_chunks(["prompt"]))


@pytest.mark.nightly
def test_groups_that_die_one_after_the_other_end_it(queue: WorkQueue, losses: list[str]) -> None:
    queue.max_lost_groups = 1
    with pytest.raises(WorkerLostError, match=r"2 groups were lost and no chunk finished"):
        decode(queue, make_chunks([EXIT_PROMPT] * 10, 1))
    assert len(losses) == 1


@pytest.mark.parametrize("queue", [JobGroup], indirect=True)
def test_what_is_wrong_for_every_group_is_an_error_at_once(queue: WorkQueue) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        decode(queue, make_chunks(["prompt"]))
