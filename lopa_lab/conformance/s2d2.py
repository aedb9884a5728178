"""S2D2's recorded decodes on SDAR, LLaDA2.1 and D2F: their settings, and the comparison of calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, UnsupportedCaseError, token_ids
from lopa_lab.conformance.readers import RecordedSettings, block_settings, llada21_settings
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.decoders.s2d2 import S2D2D2FSettings, S2D2EditingSettings, S2D2Settings
from lopa_ray.protocol.plan import Branch
from lopa_ray.protocol.scoring import ChooseTokens, Drafted

_ESTIMATOR = "soft_entropy_negexp"  # of acceptance, by entropy
_OF_POLICIES = (
    *("do_verify_policy", "do_verify_score_threshold", "do_verify_score_type", "score_penalty_coef"),
    *("min_ssd_span_length", "legacy_ssd_span_strategy", "hysteresis_threshold_on"),
    *("hysteresis_threshold_off", "ucb_beta", "ucb_entropy_source", "ucb_span_length_bins"),
    *("ucb_block_progress_bins", "ucb_entropy_bins"),
)
_OF_VERIFICATION = (
    *("rng", "u", "seed", "ssd_ratio_threshold", "ssd_threshold_all_spans", "allow_resample"),
    *("ssd_ratio_tempering_factor", "cache_ver", "draft_ver", "top_k", "top_p"),
)
_OF_D2F = (
    *("model_type", "mask_repaired", "target_block_size", "neg_entropy", "min_tokens_per_step"),
    *("verify_confidence_threshold", "draft_confidence_threshold", "ssd_threshold_draft_confidence"),
    "ssd_partial_ar_span",
)


def s2d2_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of S2D2 on SDAR. Raises as `recorded_settings`."""
    pop, row = recorded.pop, recorded.row["settings"]
    block, max_new_tokens = recorded.pop_whole_blocks()
    if pop("temperature", float, default=1.0) not in (0.0, 1.0):
        raise UnsupportedCaseError("a temperature: drafts are verified by plain probabilities here")
    if row.get("ssd_threshold_all_spans") and row.get("ssd_ratio_threshold", -1) >= 0:
        raise UnsupportedCaseError("ssd_threshold_all_spans: here one run of masks is verified")
    return S2D2Settings, {
        "block_size": block,
        "max_new_tokens": max_new_tokens,
        "denoising_steps": pop("denoising_steps", int),
        "confidence_threshold": recorded.pop_threshold("confidence_threshold"),
        "remasking": pop("remasking_strategy", str, default="low_confidence_dynamic"),
        "causal_cache": bool(row.get("cache_ver") and row.get("draft_ver")),
        "min_expected": _pop_min_expected(recorded),
        "ignore_eos": True,
        "stop_token_ids": tuple(pop("stopping_criteria_idx", list, default=[])),
        "stop_at_eos": False,
    }


def s2d2_editing_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of S2D2 on LLaDA2.1. Raises as `recorded_settings`."""
    if recorded.pop("published_mask", bool, default=False):
        raise UnsupportedCaseError("published_mask: here prompts see by blocks")
    min_expected = _pop_min_expected(recorded)
    _, values = llada21_settings(recorded)
    return S2D2EditingSettings, values | {"min_expected": min_expected}


def s2d2_d2f_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of S2D2 on D2F. A threshold of negative entropies is that of their exponentials. Raises as
    `recorded_settings`."""
    pop, row = recorded.pop, recorded.row["settings"]
    if row["model_type"] == "dream" and not row.get("mask_repaired"):
        raise UnsupportedCaseError("no mask: here blocks of Dream see no later ones")
    if row["model_type"] == "dream" and row.get("target_block_size", 1) > 1:
        raise UnsupportedCaseError("target_block_size: here a causal call verifies where logits are shifted")
    ends = pop("eos_token_id", list, default=[])
    min_expected = _pop_min_expected(recorded, *_OF_D2F)
    _, values = block_settings(recorded)
    if row.get("neg_entropy"):
        values["confidence_threshold"] = math.exp(row["skip_threshold"])
    values |= {"min_expected": min_expected, "ignore_eos": True, "stop_token_ids": tuple(ends)}
    del values["top_p"], values["top_k"]
    return S2D2D2FSettings, values


def _pop_min_expected(recorded: RowSettings, *more: str) -> float:
    """Pop what `published_s2d2` reads from the row, `more` settings among it. Raises UnsupportedCaseError."""
    row = recorded.row["settings"]
    estimator = recorded.pop("token_acceptance_estimator", str, default="hard_margin_threshold")
    if row.get("do_verify_policy", "").startswith("score") and estimator != _ESTIMATOR:
        raise UnsupportedCaseError(f"estimator {estimator}: here acceptance is estimated by entropy")
    for name in (*_OF_POLICIES, *_OF_VERIFICATION, *more):
        recorded.pop(name, str, int, float, bool, default=None)
    return max(0.0, row.get("do_verify_score_threshold", 0.0) + row.get("score_penalty_coef", 2.0))


def compare_s2d2(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """The calls that draft, which of them another call verified, what each step filled and edited, and the answer.
    Calls that only cache tokens are compared on SDAR, except that the published code stores its last block, too."""
    row = case.row
    caches, feeds_along = case.kind.startswith("s2d2_sdar"), case.kind.startswith("s2d2_llada21")
    steps = row["trace"][: -1 if row["trace"][-1].get("k") == "s" else None]
    kinds = [step.get("k", "d").replace("p", "c").replace("s", "c") for step in steps]
    got: list[dict[str, Any]] = []
    for plan, outcome in run.rounds:
        branch = plan.branches[0]
        window = [plan.start, len(plan.canvas)]
        if _is_verifying(branch):
            got[-1] |= {"v": 1, "span": len(plan.branches), "f": outcome.filled}
        else:
            got.append({"v": 0, "k": "d" if branch.scored else "c", "w": window, "f": outcome.filled})
    if not caches:
        steps = [step for step, kind in zip(steps, kinds, strict=True) if kind == "d"]
        kinds = ["d"] * len(steps)
    yield from check("calls", 0, kinds, [step["k"] for step in got])
    for number, (recorded, step) in enumerate(zip(steps, got, strict=False), 1):
        start, length = step["w"]
        skipped = recorded["w"][0] - start if feeds_along else 0
        yield from check("window", number, recorded["w"], [start + skipped, length - skipped])
        if kinds[number - 1] != "d":
            continue
        yield from check("verified", number, recorded["v"], step["v"])
        if step["v"]:
            yield from check("span", number, recorded["span"][1], step["span"])
        filled = sorted((decision.position, decision.token) for decision in step["f"])
        changes = [fill[:2] for fill in recorded.get("f", [])]
        changes += [[position, token] for position, _, token in recorded.get("ed", [])]
        yield from check("fills", number, sorted(map(tuple, changes)), filled)
        drafted = dict(zip(range(recorded["span"][0], 10**6), recorded["p"], strict=False)) if step["v"] else {}
        kept = [d for d in step["f"] if [d.position, d.token, "a"] in recorded.get("f", [])]
        yield from check_close(
            "p", number, [drafted[d.position] for d in kept], [d.probability for d in kept]
        )
    answer = token_ids(row, "tokens")
    if run.tokens[: len(answer)] != answer:
        yield Difference("tokens", 0, answer, run.tokens)
    if not caches:
        yield from check("canvas", 0, token_ids(row, "canvas"), run.tokens)


def _is_verifying(branch: Branch) -> bool:
    return isinstance(branch.scoring, ChooseTokens) and isinstance(branch.scoring.memory, Drafted)
