"""Forward cases of models that denoise canvases (DiffusionGemma): rows of the encoder, and logits of canvases with
given self-conditioning, through the runner of a local engine.

Shape suffixes: R rows, D hidden size, A positions of a canvas, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lopa_lab.conformance.cases import Case, Difference, MalformedCaseError, token_ids
from lopa_lab.conformance.compare import LOGIT_TOLERANCE
from lopa_lab.conformance.forwards import forward_inputs, recorded_tensor
from lopa_ray.execution.lm_head import LMHead
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.transformers_implementation.canvas_model import CanvasModel
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, StepPlan
from lopa_ray.protocol.plan_inputs import EncoderInputs

TENSORS = "tensors"


class _Forwards:
    """Steps on one slot, each with what its forward returned."""

    def __init__(self, runner: BranchRunner) -> None:
        assert isinstance(runner.model, CanvasModel)
        self._runner, self._model = runner, runner.model
        self._head = LMHead(runner.model)
        self.cached = 0
        self._commit: Commit | None = None
        self._step = 0

    @torch.inference_mode()
    def run(self, start: int, ids: list[int], *, encodes: bool, conditioning: Tensor | None) -> Tensor:
        """Hidden rows [R, D] of the encoder, or logits fp32 [A, V] of a canvas. `conditioning` [A, V]: logits after
        temperature."""
        self._step += 1
        stop = start + len(ids)
        to_stage = (range(start, stop),) if encodes else ()
        plan = Plan(
            step=self._step,
            start=start,
            canvas=tuple(ids),
            branches=(Branch(((stop, stop),), range(start, stop), to_stage=to_stage),),
            cached=(range(start),) if start else (),
            commit=self._commit,
            inputs=EncoderInputs() if encodes else None,
        )
        hidden: list[Tensor] = []

        def condition(module: nn.Module, inputs: Any, named: dict[str, Any]) -> Any:
            if conditioning is not None:
                signals = self._model.signals(conditioning.to(self._runner.device))
                named = {
                    **named,
                    "signals": named["signals"].index_copy(
                        0, torch.arange(len(ids), device=signals.device), signals
                    ),
                }
            return inputs, named

        def keep(module: nn.Module, inputs: Any, rows: Tensor) -> None:
            hidden.append(rows[: len(ids)])

        hooks = (
            self._model.register_forward_pre_hook(condition, with_kwargs=True),
            self._model.register_forward_hook(keep),
        )
        try:
            self._runner.execute(StepPlan(0, self._step, (ScheduledRequest(-1, 0, plan, (0,)),)))
        finally:
            for hook in hooks:
                hook.remove()
        self._commit = Commit(self._step, 0, to_stage, shared=False) if encodes else None
        self.cached = stop if encodes else self.cached
        return hidden[0] if encodes else self._head.full_logits(hidden[0])


def compare_canvas_forwards(case: Case, runner: BranchRunner) -> list[Difference]:
    """Run the steps in order on an empty slot and compare all recorded tensors. Raises MalformedCaseError."""
    runner.reconcile({}, ())
    forwards, differences = _Forwards(runner), []
    steps = case.row["steps"]
    for number, ((start, _), step) in enumerate(zip(forward_inputs(case), steps, strict=True), 1):
        encodes = step.get("op") == "encode"
        if not encodes and step.get("op") != "decode":
            raise MalformedCaseError(f"op: got {step.get('op')!r}; allowed: encode or decode")
        if start != forwards.cached:
            raise MalformedCaseError(f"step {number} starts at {start}; cached are {forwards.cached}")
        what = "hidden" if encodes else "logits"
        expected = recorded_tensor(case, TENSORS, step.get(what))
        given = step.get("sc_logits")
        conditioning = None if given is None else recorded_tensor(case, TENSORS, given)
        got = forwards.run(start, token_ids(step, "input"), encodes=encodes, conditioning=conditioning)
        if expected.shape != got.shape:
            differences.append(Difference(what, number, list(expected.shape), list(got.shape)))
            continue
        error = (got.cpu().float() - expected.float()).abs().max().item()
        if not error <= LOGIT_TOLERANCE:
            differences.append(Difference(what, number, f"within {LOGIT_TOLERANCE:g}", f"off by {error:.3g}"))
    return differences
