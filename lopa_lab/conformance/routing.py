"""The experts that rows of a replayed forward go to, and their weights, against the recorded ones.

Shape suffixes: R rows, P experts per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from lopa_lab.conformance.cases import Case, Difference, MalformedCaseError, abbreviate
from lopa_lab.conformance.tensors import recorded_tensor
from lopa_ray.model.mask_predictor import MaskPredictor

WEIGHT_TOLERANCE = 1e-4

EXPERTS_MODULE = "experts"
"""What native models and those of transformers alike call the module that a layer's router hands its choice to, as
(rows, chosen experts [R, P], their weights [R, P])."""


class Routing(NamedTuple):
    """One layer's choice."""

    experts: Tensor
    """int64 [R, P]."""
    weights: Tensor
    """fp32 [R, P]."""

    @classmethod
    def of(cls, experts: Tensor, weights: Tensor) -> Routing:
        """The routing of experts int64 or int32 [R, P] with weights fp32 [R, P], in any order within a row. The
        result is on the CPU, with the experts of each row in ascending order."""
        experts, order = experts.cpu().long().sort(dim=-1)
        return cls(experts, weights.cpu().float().gather(-1, order))


def recorded_routers(step: dict[str, Any]) -> Sequence[object]:
    """Where the tensors of each layer with experts are; none if the step says nothing of them.

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
