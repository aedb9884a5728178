"""The recorded cases in `tests/golden`: which files there are, and which cases are not supported."""

from __future__ import annotations

from support.paths import GOLDEN

RECORDED = sorted(str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.rglob("*_cases.jsonl"))

MASKED = (
    "dmax_edge-10",
    "llada21_edge-01",
    "llada2_edge-05",
    "localleap_dream_edge-12",
    "localleap_llada_edge-04",
)
NOT_SUPPORTED = {
    **dict.fromkeys((*MASKED, "sdar_edge-07", "sdar_moe_edge-02"), "is the mask token"),
    # A branch that crashes as published, and one of two repairs of it.
    **{f"sdar_entropy_init_fix-0{number}": "not implemented" for number in (1, 3, 5, 6)},
}
"""Case → the reason. All others pass."""
