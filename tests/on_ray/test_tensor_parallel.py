"""Workers of several actors, each with a shard of the model: tokens as in one process, whatever is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.engine import RayEngine
from lopa_ray.errors import SettingsError
from support.fault_injection import FaultInjection
from support.groups import PROMPTS, SETTINGS, config
from support.marks import also_long
from support.paths import GOLDEN
from support.trials import PATIENCE_S, Oracle, Trial, actor_pids, essence, fated

SHARDS = {"num_workers": 2, "tensor_parallel_size": 2}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, oracle: Oracle) -> Iterator[tuple[Trial, FaultInjection]]:
    with fated(tmp_path_factory.mktemp("fates"), oracle, **SHARDS) as made:
        yield made


def test_same_tokens_as_in_one_process(group: tuple[Trial, FaultInjection], oracle: Oracle) -> None:
    trial, _ = group
    assert len(actor_pids("BranchWorker")) >= 4
    for name in ("two_phase", "single_phase", "sampled", "prefix_cache", "block_diffusion"):
        found = trial.engine.generate(PROMPTS[:2], SETTINGS[name])
        assert [essence(result) for result in found] == [oracle[at, name] for at in range(2)]
    first, second = trial.engine.checksums()
    assert first == second and any(slot.spans for slot in first)
    half = len(first) // 2
    assert [slot.spans for slot in first[:half]] == [slot.spans for slot in first[half:]]
    assert [slot.digest for slot in first[:half]] != [slot.digest for slot in first[half:]]


@pytest.mark.parametrize(
    "point",
    ["forward", *also_long("step", "source", "receiver", "answer", "join", "adopt", "export", "load")],
)
def test_a_shard_is_killed(group: tuple[Trial, FaultInjection], point: str) -> None:
    """It takes its worker along; another worker comes, with all its shards."""
    trial, fates = group
    trial.until_there_are(2)
    before = set(actor_pids("BranchWorker"))
    fates.lay(point)
    trial.batch(6, lambda: fates.lay("forward") if point in ("join", "adopt", "export", "load") else None)
    trial.until(lambda: not fates.waiting)
    trial.until_there_are(2)
    assert len(before - set(actor_pids("BranchWorker"))) >= 2


@pytest.mark.long
def test_workers_with_shards_come_and_go(group: tuple[Trial, FaultInjection]) -> None:
    trial, _ = group
    for size in (1, 3, 2):
        trial.engine.resize(size)
        trial.batch(4)
        trial.until_there_are(size)


@pytest.mark.long
@pytest.mark.parametrize("point", ["forward", "source", "receiver"])
@pytest.mark.parametrize("transfer", ["collective", "object_store"])
def test_a_shard_hangs(point: str, transfer: str, tmp_path: Path, oracle: Oracle) -> None:
    with fated(tmp_path, oracle, step_timeout_s=4.0, transfer=transfer, **SHARDS) as (trial, fates):
        trial.batch(6, lambda: fates.lay(point, kind=signal.SIGSTOP))
        trial.until(lambda: not fates.waiting)
        trial.until_there_are(2)
        assert all(trial.held_up(moment) < 4.0 + 3.0 for moment in fates.taken().values())


@pytest.mark.long
@pytest.mark.parametrize("point", ["forward", "source", "receiver"])
def test_a_shard_is_killed_where_kv_travel_by_object_store(
    point: str, tmp_path: Path, oracle: Oracle
) -> None:
    with fated(tmp_path, oracle, transfer="object_store", **SHARDS) as (trial, fates):
        trial.batch(6, lambda: fates.lay(point))
        trial.until(lambda: not fates.waiting)
        trial.until_there_are(2)
        assert all(trial.held_up(moment) < 10.0 for moment in fates.taken().values())


def test_more_shards_than_heads_are_refused_before_ray_is_started() -> None:
    with pytest.raises(SettingsError, match=r"got 4 for a model with 4 heads, 2 KV heads"):
        RayEngine.from_config(config(group={"num_workers": 1, "tensor_parallel_size": 4}))


FILES = ("lopa_cases", "lora_cases", "d2f_llada_cases", "dream_generate_cases", "llada_generate_cases")


@pytest.mark.long
@pytest.mark.parametrize("name", [*FILES, "sdar/sdar_generate_cases"])
def test_all_recorded_cases(name: str) -> None:
    """As a user would ask for it."""
    command = [sys.executable, "-m", "cluster.cli", "conformance", str(GOLDEN / f"{name}.jsonl")]
    options = ["--workers", "2", "--tensor-parallel-size", "2", "--models", str(GOLDEN / "models"), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=30 * PATIENCE_S)
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert verdicts, done.stderr
    wrong = [verdict for verdict in verdicts if verdict["status"] not in ("passed", "not supported")]
    assert wrong == []
