"""Builds a `BranchRunner` from a configuration: it loads weights, selects device and attention, warms
up and captures steps."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from lopa_ray.errors import SettingsError
from lopa_ray.execution.attention_backends import resolve_attention, select_backend
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.graph_capture import CudaCapture
from lopa_ray.execution.model_files import adapter_folder, checkpoint_folder, draft_adapter_folder
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.step_graphs import graph_refusal
from lopa_ray.kernels.operators import triton_works
from lopa_ray.kernels.slot_attention import PART_KEYS
from lopa_ray.model.checkpoint.weight_source import AT_START
from lopa_ray.model.implementation import check_positions, implementation_of
from lopa_ray.model.linear import is_packed, pack
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, Spans, StepPlan
from lopa_ray.protocol.plan_inputs import EncoderInputs

WARM_UP_ROWS = (48, 16)
"""Rows of the warm-up forwards. There are two sizes, because int8 matmuls of few rows have separate graphs."""


_log = logging.getLogger("lopa.graphs")
_log_packing = logging.getLogger("lopa.weights")

EXPECTED_BRANCHES = 8
"""Branches of each request in the largest step that is expected on an accelerator."""

EXPECTED_BRANCH_ROWS = 64


def load_weights(
    spec: ModelSpec, device: torch.device | str, tp_group: TensorParallelGroup = SINGLE_SHARD
) -> Weights:
    """The parameters of the model, or of a shard, in `spec.dtype` on `device`, one by one. Raises CheckpointError."""
    model = spec.config.model
    implementation = implementation_of(spec.model, spec.dtype, device, tp_group)
    if model.load_format == "dummy" and spec.weights == AT_START:
        return implementation.random_weights(seed=0)
    source, lora = spec.weights, adapter_folder(model)
    if lora is not None and source.folder is None:
        source = replace(source, loras=(lora, *source.loras))
    folder, draft_adapter = checkpoint_folder(model, weights=True), draft_adapter_folder(model, weights=True)
    return implementation.read_weights(folder, source, draft_adapter=draft_adapter)


def resolve_auto(spec: ModelSpec) -> ModelSpec:
    """The same spec, in which `model.attention` auto is replaced by the fastest backend on this machine, where backends
    are timed, and the fp8 of a checkpoint by floating weights if the device does not multiply it. Raises
    SettingsError."""
    if not spec.has_auto:
        return spec
    model = spec.config.model
    device = DEVICES[model.device]
    torch_device = device.torch_device()
    spec = replace(spec, model=implementation_of(spec.model, spec.dtype, torch_device).fitted())
    if not spec.has_auto_attention:
        return spec
    shard = spec.model.shard(spec.config.group.tensor_parallel_size)
    if spec.model.canvas_length:
        return replace(spec, config=spec.config.replace(model=model.replace(attention="sdpa")))
    name = resolve_attention(device, shard, spec.dtype, model.max_model_len)
    return replace(spec, config=spec.config.replace(model=model.replace(attention=name)))


def build_model(
    spec: ModelSpec, weights: Weights | None = None, tp_group: TensorParallelGroup = SINGLE_SHARD
) -> MaskPredictor:
    """The model of a spec in which nothing is auto, or the shard that `tp_group` names. `weights`, of the whole model,
    are loaded if they are not given. Raises CheckpointError or SettingsError."""
    torch_device = DEVICES[spec.config.model.device].torch_device()
    implementation = implementation_of(spec.model, spec.dtype, torch_device, tp_group)
    are_shared = weights is not None
    if weights is None:
        weights = load_weights(spec, torch_device if tp_group.size == 1 else "cpu", tp_group)
    else:
        weights = implementation.shard_weights(weights)
    loaded = implementation.build_model(weights)
    # Packed weights are a process's own. Which of the shards keep bits could differ, and with it the rows of a step.
    float32 = spec.config.model.pack_float32 and spec.dtype == torch.float32 and tp_group.size == 1
    if float32 or not are_shared:
        pack(loaded, float32=float32)
    if float32 and not is_packed(loaded, torch.float32):
        _log_packing.warning(
            "model.pack_float32: some products of this model, or on this CPU, are not packed"
        )
    return loaded


def build_runner(
    spec: ModelSpec, weights: Weights | None = None, tp_group: TensorParallelGroup = SINGLE_SHARD
) -> BranchRunner:
    """The runner of a model; see `build_model`. Raises CheckpointError or SettingsError."""
    spec = resolve_auto(spec)
    model, loaded = spec.config.model, build_model(spec, weights, tp_group)
    device = DEVICES[model.device]
    check_positions(loaded, model.max_model_len)
    runner = BranchRunner(
        loaded,
        max_num_seqs=model.max_num_seqs,
        # The last canvas of an answer is computed whole, even where less of it is asked for.
        max_model_len=model.max_model_len + spec.model.canvas_length,
        attention=select_backend(
            model.attention, device, loaded.shard_config, spec.dtype, model.max_model_len
        ),
    )
    if spec.needs_warm_up and tp_group.size == 1:  # shards warm up after they are connected
        warm_up(runner)
    capture_graphs(spec, runner)
    return runner


def capture_graphs(spec: ModelSpec, runner: BranchRunner) -> None:
    """Capture the steps of a runner that is warm, if `model.cuda_graphs` is auto, and device and model allow it; logs
    the reason if they do not. Raises SettingsError if a capture fails."""
    model = spec.config.model
    if model.cuda_graphs == "none" or not DEVICES[model.device].captures_graphs:
        return
    refusal = graph_refusal(runner.model, runner.attention)
    if refusal is None and not triton_works():
        refusal = "Triton does not work here"
    if refusal is not None:
        _log.info("no CUDA graphs: %s", refusal)
        return
    try:
        runner.capture_graphs(CudaCapture(runner.device))
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SettingsError(
            f"model.cuda_graphs: got 'auto', but a step cannot be captured ({reason}); set it to none"
        ) from error


def warm_up(runner: BranchRunner) -> None:
    """Compile kernels now. A first step that takes minutes could be taken for a worker that does not answer. On an
    accelerator it ends with the largest step that is expected, so that a lack of memory shows now. All shards of a
    model have to call this at the same time. Raises torch.OutOfMemoryError."""

    def execute(*plans: StepPlan) -> None:
        for plan in plans:
            runner.execute(plan)
        runner.reconcile({}, ())

    for most in WARM_UP_ROWS:
        rows, cached = min(most, runner.cache.capacity), (range(1),)
        whole = Branch(((rows, rows),), range(rows), to_stage=cached)
        in_two = Branch(((rows - 1, rows - 1), (rows, rows)), range(rows))
        first = _scheduled(runner, 0, range(rows), (whole,))
        plan = _scheduled(runner, 0, range(1, rows), (in_two,), cached).plan
        plan = replace(plan, step=2, commit=Commit(1, 0, cached, shared=False), inputs=None)
        execute(StepPlan(0, 1, (first,)), StepPlan(0, 2, (replace(first, plan=plan),)))
    if runner.cache.capacity > PART_KEYS:
        execute(far_step(runner))
    if runner.device.type != "cpu":
        execute(largest_step(runner))


def far_step(runner: BranchRunner) -> StepPlan:
    """A branch at the end of the first slot, whose attention is split into parts. The slot is marked as filled."""
    span = range(runner.cache.capacity - min(WARM_UP_ROWS), runner.cache.capacity)
    cached = (range(span.start),)
    runner.cache.reset(0, 0)
    runner.cache.mark_committed(0, cached)
    branch = Branch(((span.stop, span.stop),), span)
    return StepPlan(0, 1, (_scheduled(runner, 0, span, (branch,), cached),))


def largest_step(runner: BranchRunner) -> StepPlan:
    capacity, requests = runner.cache.capacity, []
    for slot in range(len(runner.cache.request_ids)):
        rows = capacity if slot == 0 else min(EXPECTED_BRANCH_ROWS, capacity)
        scored = range(max(0, rows - EXPECTED_BRANCH_ROWS), rows)
        branch = Branch(((rows, rows),), scored, to_stage=(range(rows),))
        branches = (branch,) * (1 if slot == 0 else EXPECTED_BRANCHES)
        requests.append(_scheduled(runner, slot, range(rows), branches))
    return StepPlan(0, 1, tuple(requests))


def _scheduled(
    runner: BranchRunner, slot: int, span: range, branches: tuple[Branch, ...], cached: Spans = ()
) -> ScheduledRequest:
    """A first step over a span of masks, or of any tokens where the model denoises canvases and scores all of them."""
    encodes = runner.vocabulary.canvas_length > 0
    canvas = (0 if encodes else runner.vocabulary.mask_token_id,) * len(span)
    inputs = EncoderInputs() if encodes else None
    plan = Plan(1, span.start, canvas, branches, cached, inputs=inputs, scores_decided=encodes)
    return ScheduledRequest(slot, slot, plan, tuple(range(len(branches))))
