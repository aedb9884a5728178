"""The files of recorded cases in `tests/golden`, and which of their cases are refused; all others pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import torch

from lopa_lab.conformance.cases import Case, Verdict
from lopa_lab.conformance.replay import replay
from lopa_ray.engine.local import LocalEngine
from support.paths import GOLDEN

Row: TypeAlias = dict[str, Any]

RECORDED = sorted(
    str(path.relative_to(GOLDEN)).removesuffix(".jsonl") for path in GOLDEN.rglob("*_cases.jsonl")
)

MASK_IN_PROMPT = "is the mask token"
"""The reason why a case is refused by design."""

_WITH_MASK = (
    *("sdar_edge-07", "sdar_moe_edge-02", "llada2_edge-05", "llada21_edge-01", "dmax_edge-10"),
    *("localleap_llada_edge-04", "localleap_dream_edge-12", "klass_llada-40", "klass_dream-28"),
    *("credit_full-35", "credit_full-38", "credit_full-49", "wino_llada-32"),
)

REFUSED = {
    **dict.fromkeys(_WITH_MASK, MASK_IN_PROMPT),
    # A branch that crashes as published, and one of two repairs of it.
    **{f"sdar_entropy_init_fix-0{n}": "not implemented" for n in (1, 3, 5, 6)},
    "credit_full-39": "no request changes another",
    **dict.fromkeys(("s2d2_sdar_dyn-01", "s2d2_sdar_dyn-02", "s2d2_sdar_stat-02"), "estimated by entropy"),
    "s2d2_sdar_edge-06": "plain probabilities",
    "s2d2_sdar_edge-17": "one run of masks",
    "s2d2_llada21_score-05": "estimated by entropy",
    "s2d2_llada21_edge-04": "plain probabilities",
    **{f"s2d2_llada21_pubmask-0{n}": "published_mask" for n in (2, 3)},
    **{f"s2d2_d2f_dream-{n}": "mask_repaired" for n in (15, 16, 17)},
}
"""Case → its reason."""


def rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


def as_case(row: Row) -> Case:
    return Case(Path("cases.jsonl"), 1, row["id"], row["kind"], row, row["model"], row.get("lora"))


def verdict_of(row: Row) -> Verdict:
    torch.set_num_threads(1)
    (verdict,) = replay([as_case(row)], GOLDEN / "models", LocalEngine.from_config)
    return verdict
