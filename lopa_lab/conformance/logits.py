"""Forward cases: full logits of recorded spans and what their routers choose, through the runner of a local engine."""

from __future__ import annotations

from typing import Any

from lopa_lab.conformance.cases import Case, Difference, MalformedCaseError, UnsupportedCaseError, token_ids
from lopa_lab.conformance.compare import LOGIT_TOLERANCE
from lopa_lab.conformance.routing import compare_routing, observed_routing, recorded_routers
from lopa_lab.conformance.tensors import recorded_tensor
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import Segment


def forward_inputs(case: Case) -> list[tuple[int, list[int]]]:
    """(start, ids) per step. Raises MalformedCaseError and UnsupportedCaseError."""
    found = []
    for step in case.row["steps"]:
        if not isinstance(step, dict):
            raise MalformedCaseError(f"steps: got {step!r}; allowed: objects")
        found.append((_count(step, "start"), token_ids(step, "input")))
        if not found[-1][1]:
            raise MalformedCaseError("input: got no ids; allowed: at least one")
    if not found:
        raise MalformedCaseError("steps: got none; allowed: at least one")
    return found


def compare_logits(case: Case, runner: BranchRunner) -> list[Difference]:
    """Run the steps in order and compare all logits, and all routers that are recorded. Raises MalformedCaseError."""
    differences: list[Difference] = []
    cached = 0
    for number, ((start, ids), step) in enumerate(
        zip(forward_inputs(case), case.row["steps"], strict=True), 1
    ):
        if start > cached:
            raise MalformedCaseError(
                f"step {number} starts at {start}, but only {cached} positions are cached"
            )
        span = range(start, start + _num_cached(step, len(ids)))
        if len(span) > len(ids):
            raise MalformedCaseError(f"step {number} updates {len(span)} positions, but has {len(ids)}")
        expected, routers = recorded_tensor(case, "logits", step.get("logits")), recorded_routers(step)
        if step.get("mode") in ("prefix", "dual"):
            # Both read the K/V of the full call, over whose rows the other one writes its window.
            full = forward_inputs(case)[0][1]
            runner.logits(full, to_stage=(range(len(full)),))
        segments, to_stage = _segments(step, start, len(ids)), (span,) if span else ()
        with observed_routing(runner.model) as observed:
            got = runner.logits(ids, start=start, segments=segments, to_stage=to_stage)
        if routers:
            differences += compare_routing(case, number, routers, observed, len(ids))
        if start == 0 or span:
            cached = span.stop
        if step.get("cache_len_after", cached) != cached:
            differences.append(Difference("cache length", number, step["cache_len_after"], cached))
        if expected.shape != got.shape:
            differences.append(Difference("logits", number, list(expected.shape), list(got.shape)))
        else:
            error = (got.cpu().float() - expected.float()).abs().max().item()
            if not error <= LOGIT_TOLERANCE:
                differences.append(
                    Difference("logits", number, f"within {LOGIT_TOLERANCE:g}", f"off by {error:.3g}")
                )
    return differences


def _num_cached(step: dict[str, Any], length: int) -> int:
    """Leading input positions whose K/V enter the cache: said as a number, as all or none, or all by the mode."""
    if "mode" in step:
        return length if step["mode"] == "full" else 0
    if "store" in step:
        return length * _count(step, "store")
    return _count(step, "update")


def _count(step: dict[str, Any], key: str) -> int:
    value = step.get(key, 0)
    if type(value) is not int or value < 0:
        raise MalformedCaseError(f"{key}: got {value!r}; allowed: 0 and more")
    return value


def _segments(step: dict[str, Any], start: int, length: int) -> tuple[Segment, ...]:
    """What the rows see: everything, or block by block what came before and their own block."""
    stop = start + length
    if "mode" in step:
        total = _count(step, "total")
        return ((stop, total),)
    attention = step.get("attn", "block" if "block" in step else None)
    if attention == "full" or (attention == "none" and start == 0):
        return ((stop, stop),)
    if attention != "block":
        raise UnsupportedCaseError(f"attn {attention!r} from position {start} is not implemented")
    end, block = _count(step, "prompt_len"), _count(step, "block")
    if block == 0:
        raise MalformedCaseError("block: got 0; allowed: 1 and more")
    ends = [end, *range(end + block, stop + block, block)]
    return tuple((min(end, stop), min(end, stop)) for end in ends if end > start)
