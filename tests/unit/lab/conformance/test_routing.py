"""Recorded routers: every layer of every step is compared, and a recording that is changed or missing is noticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_lab.conformance import forwards
from lopa_lab.conformance.cases import Verdict, read_cases
from lopa_lab.conformance.replay import replay
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.model.families.native import FAMILIES
from support.paths import GOLDEN

pytestmark = pytest.mark.medium

EXPERTS = [family.name for family in FAMILIES if family.has_experts]
IMPLEMENTATIONS = ("native", "transformers")

Row = dict[str, Any]

RECORDED = GOLDEN / "llada2"


def replayed(path: Path, implementation: str = "native") -> list[Verdict]:
    def make_engine(config: Config) -> LocalEngine:
        model = config.model.replace(implementation=implementation)
        return LocalEngine.from_config(config.replace(model=model))

    torch.set_num_threads(1)
    return list(replay(read_cases(path), GOLDEN / "models", make_engine))


def longest_routed() -> Row:
    lines = (RECORDED / "llada2_forward_cases.jsonl").read_text().splitlines()
    routed = [row for row in map(json.loads, lines) if "router" in row["steps"][0]]
    return max(routed, key=lambda row: len(row["steps"]))


def write_case(folder: Path, row: Row, routers: dict[str, Tensor] | None) -> Path:
    path = folder / "llada2_forward_cases.jsonl"
    path.write_text(json.dumps(row) + "\n")
    shutil.copy(RECORDED / "llada2_forward_logits.safetensors", folder)
    if routers is not None:
        save_file(routers, folder / "llada2_forward_router.safetensors")
    return path


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", EXPERTS)
def test_every_recorded_layer_is_compared(
    family: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    compare = forwards._recorded_routing
    monkeypatch.setattr(
        forwards, "_recorded_routing", lambda case, stem: compared.append(stem) or compare(case, stem)
    )
    path = GOLDEN / family / f"{family}_forward_cases.jsonl"
    assert {verdict.status for verdict in replayed(path, implementation)} == {"passed"}
    recorded = load_file(path.with_name(f"{family}_forward_router.safetensors"))
    assert sorted(compared) == sorted({name.rpartition(".")[0] for name in recorded})


def other_expert(experts: Tensor, weights: Tensor) -> None:
    unused = next(expert for expert in range(16) if expert not in experts[-1].tolist())
    experts[-1, 2] = unused


def other_weight(experts: Tensor, weights: Tensor) -> None:
    weights[-1, 1] += 2e-4


def swapped_weights(experts: Tensor, weights: Tensor) -> None:
    weights[0] = weights[0].flip(0)


def no_number(experts: Tensor, weights: Tensor) -> None:
    weights[0, 0] = float("nan")


@pytest.mark.parametrize("change", [other_expert, other_weight, swapped_weights, no_number])
def test_a_changed_router_is_noticed(change: Callable[[Tensor, Tensor], None], tmp_path: Path) -> None:
    """In the last layer of a late step, which reads the cache."""
    row = longest_routed()
    routers = load_file(RECORDED / "llada2_forward_router.safetensors")
    stem = row["steps"][3]["router"][-1]
    change(routers[f"{stem}.experts"], routers[f"{stem}.weights"])
    (verdict,) = replayed(write_case(tmp_path, row, routers))
    assert verdict.status == "differs"
    assert [(difference.what, difference.round) for difference in verdict.differences] == [("router", 4)]


def test_missing_routers_are_an_error(tmp_path: Path) -> None:
    row = longest_routed()
    (verdict,) = replayed(write_case(tmp_path, row, None))
    assert verdict.status == "error"
    assert "llada2_forward_router.safetensors" in verdict.reason
    assert row["steps"][0]["router"][0] in verdict.reason
