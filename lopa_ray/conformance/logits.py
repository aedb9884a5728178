"""Forward cases: full logits of recorded spans, through the runner of a local engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lopa_ray.conformance.cases import Case, Difference, MalformedCaseError, UnsupportedCaseError, token_ids
from lopa_ray.conformance.compare import LOGIT_TOLERANCE
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
    """Run the steps in order and compare all logits. Raises MalformedCaseError."""
    differences = []
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
        expected = _recorded_logits(case, step)
        if step.get("mode") in ("prefix", "dual"):
            # Both read the K/V of the full call, over whose rows the other one writes its window.
            full = forward_inputs(case)[0][1]
            runner.logits(full, to_stage=(range(len(full)),))
        got = runner.logits(
            ids, start=start, segments=_segments(step, start, len(ids)), to_stage=(span,) if span else ()
        )
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


def _recorded_logits(case: Case, step: dict[str, Any]) -> Tensor:
    """The recorded logits: `NAME_cases.jsonl` has its tensors beside it in `NAME_logits.safetensors`."""
    name = step.get("logits")
    if not isinstance(name, str):
        raise MalformedCaseError(f"logits: got {name!r}; allowed: the name of a tensor")
    beside = case.file.with_name(f"{case.file.stem.removesuffix('_cases')}_logits.safetensors")
    others = sorted(path for path in case.file.parent.glob("*_logits.safetensors") if path != beside)
    for path in [beside, *others]:
        tensor = _read_tensor(path, name)
        if tensor is not None:
            return tensor
    raise MalformedCaseError(f"no tensor {name!r} in {beside}; copy the recorded logits there")


def _read_tensor(path: Path, name: str) -> Tensor | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as tensors:
            if name not in tensors.keys():  # noqa: SIM118 - the handle is no mapping
                return None
            tensor: Tensor = tensors.get_tensor(name)
            return tensor
    except (SafetensorError, OSError) as error:
        raise MalformedCaseError(f"cannot read {path}: {error}") from None
