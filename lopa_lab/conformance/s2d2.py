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
from lopa_ray.protocol.scoring import ChooseTokens, Drafted

_OF_VERIFICATION = (
    *("rng", "u", "seed", "ssd_ratio_threshold", "ssd_threshold_all_spans", "allow_resample"),
    *("ssd_ratio_tempering_factor", "cache_ver", "draft_ver", "top_k", "top_p", "do_verify_policy"),
    *("do_verify_score_threshold", "do_verify_score_type", "score_penalty_coef", "min_ssd_span_length"),
    *("legacy_ssd_span_strategy", "hysteresis_threshold_on", "hysteresis_threshold_off", "ucb_beta"),
    *("ucb_entropy_source", "ucb_span_length_bins", "ucb_block_progress_bins", "ucb_entropy_bins"),
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
        raise UnsupportedCaseError("published_mask: here blocks of the prompt see no later ones")
    least = _pop_min_expected(recorded)
    return S2D2EditingSettings, llada21_settings(recorded)[1] | {"min_expected": least}


def s2d2_d2f_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of S2D2 on D2F. A threshold of negative entropies is that of their exponentials. Raises as
    `recorded_settings`."""
    row, ends = recorded.row["settings"], recorded.pop("eos_token_id", list, default=[])
    is_dream, least = row.get("model_type") == "dream", _pop_min_expected(recorded, *_OF_D2F)
    if is_dream and not row.get("mask_repaired"):
        raise UnsupportedCaseError("mask_repaired false: here blocks see no later ones")
    values, size = block_settings(recorded)[1], row.get("target_block_size", 1)
    if size > 1 and (is_dream or values["block_size"] % size):
        raise UnsupportedCaseError("target_block_size: only parts of LLaDA's blocks are verified together")
    if row.get("neg_entropy"):
        values["confidence_threshold"] = math.exp(row["skip_threshold"])
    values |= {"min_expected": least, "ignore_eos": True, "stop_token_ids": tuple(ends)}
    return S2D2D2FSettings, values


def _pop_min_expected(recorded: RowSettings, *more: str) -> float:
    """Also pop what `published_s2d2` reads from the row, `more` of it too. Raises UnsupportedCaseError."""
    row = recorded.row["settings"]
    estimator = recorded.pop("token_acceptance_estimator", str, default="hard_margin_threshold")
    if row.get("do_verify_policy", "").startswith("score") and estimator != "soft_entropy_negexp":
        raise UnsupportedCaseError(f"estimator {estimator}: here acceptance is estimated by entropy")
    if row.get("top_k") or (row.get("top_p") or 1.0) < 1.0:
        raise UnsupportedCaseError("top_k, top_p: here drafts are verified by plain probabilities")
    for name in (*_OF_VERIFICATION, *more):
        recorded.pop(name, str, int, float, bool, default=None)
    least: float = row.get("do_verify_score_threshold", -1.0) + row.get("score_penalty_coef", 2.0)
    return max(0.0, least)


def compare_s2d2(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """The calls that draft, which of them another call verified, what each step filled and edited, and the answer.
    Calls that cache decided tokens are made on SDAR, except that the published code stores its last block, too; on
    LLaDA2.1 the first call on a block feeds them along."""
    row, caches, feeds_along = case.row, "_sdar_" in case.kind, "_llada21_" in case.kind
    got: list[dict[str, Any]] = []
    for plan, outcome in run.rounds:
        branch, window = plan.branches[0], [plan.start, len(plan.canvas)]
        if isinstance(branch.scoring, ChooseTokens) and isinstance(branch.scoring.memory, Drafted):
            got[-1] |= {"v": 1, "span": sum(len(one.scored) for one in plan.branches), "f": outcome.filled}
        else:
            got.append({"v": 0, "d": bool(branch.scored), "w": window, "f": outcome.filled})
    trace = row["trace"][: -1 if row["trace"][-1].get("k") == "s" else None]
    steps = [step for step in trace if caches or step.get("k", "d") == "d"]
    drafts = [step.get("k", "d") == "d" for step in steps]
    yield from check("calls", 0, drafts, [step["d"] for step in got])
    for number, (recorded, step) in enumerate(zip(steps, got, strict=False), 1):
        start, length = step["w"]
        before = recorded["w"][0] - start if feeds_along else 0
        yield from check("window", number, recorded["w"], [start + before, length - before])
        if not drafts[number - 1]:
            continue
        yield from check("verified", number, recorded["v"], step["v"])
        fills = [fill[:2] for fill in recorded.get("f", [])]
        fills += [[position, token] for position, _, token in recorded.get("ed", [])]
        yield from check("fills", number, sorted(fills), sorted([*d.fill] for d in step["f"]))
        if step["v"]:
            start, length = recorded["span"]
            yield from check("span", number, length, step["span"])
            accepted = [d for d in step["f"] if [*d.fill, "a"] in recorded["f"]]
            p = [recorded["p"][d.position - start] for d in accepted]
            yield from check_close("p", number, p, [d.probability for d in accepted])
    answer = token_ids(row, "tokens")
    yield from check("tokens", 0, answer, run.tokens[: len(answer)])
    if not caches:
        yield from check("canvas", 0, token_ids(row, "canvas"), run.tokens)
