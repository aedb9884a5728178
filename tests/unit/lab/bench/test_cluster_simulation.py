"""The simulated cluster: its numbers are those in the documentation, and its model behaves as it says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lopa_lab.bench.cluster_simulation import (
    Scenario,
    block_bytes,
    fit_costs,
    position_bytes,
    read_costs,
    simulate,
    simulate_clusters,
)
from lopa_lab.bench.measurements import BenchRecord, Measurements, record_table
from lopa_lab.records import markdown
from lopa_lab.records.machine import Machine
from lopa_lab.records.record import now
from lopa_ray.errors import SettingsError
from support.paths import ROOT

DOCUMENT = ROOT / "docs" / "cluster.md"

PUBLISHED_TOKENS_PER_S = 619
"""One request on GSM8K, 8 H200, TP1 × BP8 (arXiv 2512.16229)."""


def bench_record_of(name: str, measurements: Measurements) -> BenchRecord:
    about = {"started": now(), "machine": Machine.here(), "commit": None}
    return BenchRecord.of_run(["bench", name], benchmark=name, **about, **dataclasses.asdict(measurements))


@pytest.fixture(scope="module")
def costs() -> dict[str, Any]:
    return read_costs(None)


def test_the_documented_table_is_what_the_command_prints(costs: dict[str, Any]) -> None:
    record = bench_record_of("cluster", simulate_clusters(costs))
    header, *rows = record_table(record)
    assert markdown.table(header, rows) in DOCUMENT.read_text()


def test_costs_are_fitted_to_the_steps_of_groups() -> None:
    def row(workers: int, scatter: float, gather: float) -> dict[str, Any]:
        spent = {"plan ms": 0.3, "select ms": 0.5, "scatter ms": scatter, "gather ms": gather}
        return {"workers": workers, "branches": 4, "requests": 2, "shards": 1, **spent}

    rows = [row(0, 0, 0), row(1, 0.5, 1.0), row(2, 1.0, 1.5), row(4, 2.0, 2.5)]
    record = bench_record_of("bench", Measurements(("workers",), rows, ""))
    with pytest.raises(SettingsError, match="lopa bench step"):
        fit_costs(record)
    mixed = record.model_copy(update={"name": "step", "rows": (*rows, {**row(2, 1, 1), "branches": 8})})
    with pytest.raises(SettingsError, match="one of branches"):
        fit_costs(mixed)
    fitted = fit_costs(record.model_copy(update={"name": "step"}))
    assert fitted["ms_per_branch"] == pytest.approx(0.1)
    assert (fitted["ms_per_step"], fitted["ms_per_worker"]) == pytest.approx((0.5, 1.0))


def test_the_documented_bytes_are_those_of_the_model(costs: dict[str, Any]) -> None:
    model = costs["assumed"]["model"]
    assert position_bytes(model) == 56 * 1024
    assert round(block_bytes(model) / 2**20, 2) == 1.76
    assert 2048 * position_bytes(model) == 112 * 2**20


def test_groups_add_up_and_a_slow_network_costs(costs: dict[str, Any]) -> None:
    one = Scenario(1, 16, 16, "100 GbE")
    base = simulate(one, costs)
    many = simulate(dataclasses.replace(one, groups=64), costs)
    assert many["tokens/s in all"] == pytest.approx(64 * base["tokens/s in all"])
    assert many["step ms"] == base["step ms"]
    assert simulate(dataclasses.replace(one, network="10 GbE"), costs)["step ms"] > base["step ms"]


def test_workers_help_one_request_up_to_its_branches(costs: dict[str, Any]) -> None:
    def step(workers: int) -> float:
        return float(simulate(Scenario(1, workers, 1, "nvlink"), costs)["step ms"])

    # 5 branches on 3 or 4 workers are 2 on the busiest, on 5 or more they are 1.
    assert step(1) > step(3)
    assert step(3) < step(4) and step(5) < step(8)


def test_the_assumptions_are_within_reach_of_what_was_published(costs: dict[str, Any]) -> None:
    simulated = simulate(Scenario(1, 8, 1, "nvlink"), costs)["tokens/s per request"]
    assert PUBLISHED_TOKENS_PER_S / 1.5 < simulated < PUBLISHED_TOKENS_PER_S * 1.5
