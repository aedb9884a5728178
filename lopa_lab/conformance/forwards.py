"""Forward cases: full logits of recorded spans and what their routers choose, through the runner of a local engine.

Tensors are in a file next to the cases: `NAME_cases.jsonl` has its logits in `NAME_logits.safetensors`.

Shape suffixes: R rows, V vocabulary, P experts per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lopa_lab.conformance.cases import (
    Case,
    Difference,
    MalformedCaseError,
    UnsupportedCaseError,
    abbreviate,
    token_ids,
)
from lopa_lab.conformance.compare import LOGIT_TOLERANCE
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.protocol.plan import Segment


def recorded_tensor(case: Case, of: str, name: object) -> Tensor:
    """The tensor `name` of a case, from `NAME_<of>.safetensors`, or from another such file in the folder. Its
    shape and dtype are as recorded: logits fp32 [R, V], experts int32 [R, P], their weights fp32 [R, P].

    Raises MalformedCaseError if there is none.
    """
    if not isinstance(name, str):
        raise MalformedCaseError(f"{of}: got {name!r}; allowed: the name of a tensor")
    beside = case.file.with_name(f"{case.file.stem.removesuffix('_cases')}_{of}.safetensors")
    others = sorted(path for path in case.file.parent.glob(f"*_{of}.safetensors") if path != beside)
    for path in [beside, *others]:
        tensor = _read_tensor(path, name)
        if tensor is not None:
            return tensor
    raise MalformedCaseError(f"no tensor {name!r} in {beside}; copy the recorded tensors ({of}) there")


def _read_tensor(path: Path, name: str) -> Tensor | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as tensors:
            if name not in tensors.keys():  # noqa: SIM118 - the handle is not a mapping
                return None
            tensor: Tensor = tensors.get_tensor(name)
            return tensor
    except (SafetensorError, OSError) as error:
        raise MalformedCaseError(f"cannot read {path}: {error}") from None


WEIGHT_TOLERANCE = 1e-4

EXPERTS_MODULE = "experts"
"""Name, in native and in transformers' models, of the module that a layer's router hands its choice to, as (rows,
chosen experts [R, P], their weights [R, P])."""


class Routing(NamedTuple):
    """One layer's choice."""

    experts: Tensor
    """int64 [R, P]."""
    weights: Tensor
    """fp32 [R, P]."""

    @classmethod
    def of(cls, experts: Tensor, weights: Tensor) -> Routing:
        """The choice of experts int64 or int32 [R, P] with weights fp32 [R, P], in any order within a row: on the CPU,
        with the experts of each row in ascending order."""
        experts, order = experts.cpu().long().sort(dim=-1)
        return cls(experts, weights.cpu().float().gather(-1, order))


def recorded_routers(step: dict[str, Any]) -> Sequence[object]:
    """Places of the tensors of each layer with experts; none if the step says nothing of them.

    Raises MalformedCaseError.
    """
    stems = step.get("router") or []
    if not isinstance(stems, list):
        raise MalformedCaseError(f"router: got {abbreviate(stems)}; allowed: a list of names of tensors")
    return stems


@contextmanager
def observed_routing(model: MaskPredictor) -> Iterator[list[Routing]]:
    """A list that receives what each layer with experts chooses, layer by layer, for the rows of each forward."""
    assert isinstance(model, nn.Module)
    observed: list[Routing] = []

    def observe(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        _, experts, weights = inputs
        observed.append(Routing.of(experts, weights))

    hooks = [
        module.register_forward_pre_hook(observe)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == EXPERTS_MODULE
    ]
    try:
        yield observed
    finally:
        for hook in hooks:
            hook.remove()


def compare_routing(
    case: Case, number: int, stems: Sequence[object], observed: Sequence[Routing], num_rows: int
) -> Iterator[Difference]:
    """All layers of step `number`, whose input has `num_rows` rows. Raises MalformedCaseError."""
    if len(stems) != len(observed):
        yield Difference("router", number, f"{len(stems)} layers", f"{len(observed)} layers")
        return
    for stem, routing in zip(stems, observed, strict=True):
        expected = _recorded_routing(case, stem)
        got = Routing(routing.experts[:num_rows], routing.weights[:num_rows])
        if expected.experts.shape != got.experts.shape:
            yield Difference("router", number, {stem: list(expected.experts.shape)}, list(got.experts.shape))
            continue
        other_rows = (expected.experts != got.experts).any(dim=-1).nonzero().flatten().tolist()
        if other_rows:
            row = other_rows[0]
            yield Difference(
                "router",
                number,
                {"layer": stem, "row": row, "experts": expected.experts[row].tolist()},
                got.experts[row].tolist(),
            )
            continue
        error = (expected.weights - got.weights).abs().max().item()
        if not error <= WEIGHT_TOLERANCE:
            yield Difference(
                "router", number, f"weights of {stem} within {WEIGHT_TOLERANCE:g}", f"off by {error:.3g}"
            )


def _recorded_routing(case: Case, stem: object) -> Routing:
    name = stem if isinstance(stem, str) else abbreviate(stem)
    experts, weights = (recorded_tensor(case, "router", f"{name}.{part}") for part in Routing._fields)
    if experts.dim() != 2 or experts.shape != weights.shape or experts.is_floating_point():
        raise MalformedCaseError(
            f"router {name!r}: got experts {experts.dtype} {list(experts.shape)} with weights {list(weights.shape)}; "
            "allowed: integers [rows, experts per row], and as many weights"
        )
    return Routing.of(experts, weights)


def forward_inputs(case: Case) -> list[tuple[int, list[int]]]:
    """(start, ids) per step. Raises MalformedCaseError and UnsupportedCaseError."""
    inputs = []
    for step in case.row["steps"]:
        if not isinstance(step, dict):
            raise MalformedCaseError(f"steps: got {step!r}; allowed: objects")
        inputs.append((_count(step, "start"), token_ids(step, "input")))
        if not inputs[-1][1]:
            raise MalformedCaseError("input: got no ids; allowed: at least one")
    if not inputs:
        raise MalformedCaseError("steps: got none; allowed: at least one")
    return inputs


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
            got = runner.logits(
                ids,
                start=start,
                segments=segments,
                to_stage=to_stage,
                causal=step.get("mode") == "c",
                draft_adapter=bool(_count(step, "lora_on")),
            )
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
    if "store" in step:
        return length * _count(step, "store")
    if "mode" in step:
        return length if step["mode"] == "full" else 0
    return _count(step, "update")


def _count(step: dict[str, Any], key: str) -> int:
    value = step.get(key, 0)
    if type(value) is not int or value < 0:
        raise MalformedCaseError(f"{key}: got {value!r}; allowed: 0 and more")
    return value


def _segments(step: dict[str, Any], start: int, length: int) -> tuple[Segment, ...]:
    """The segments that the rows see: everything, or block by block what came before and their own block. In a causal
    step, of mode c, they see less."""
    stop = start + length
    if step.get("mode") in ("b", "c"):
        return ((stop, stop),)
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
