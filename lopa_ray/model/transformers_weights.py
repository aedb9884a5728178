"""Weights of models that the package transformers runs: read, drawn, counted, and built into a model.

transformers loads them, since it knows how published tensors become its own (experts, say, are one tensor there). So
`Weights` here have its own names: what one process has converted, others on the node use as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint import (
    check_expected,
    check_tensors,
    check_tied,
    find_tensors,
    refuse_extra,
)
from lopa_ray.model.checkpoint_files import TensorFiles
from lopa_ray.model.config import TransformersConfig
from lopa_ray.model.lora import LoraAdapter
from lopa_ray.model.transformers_config import causal_lm_class, make_pretrained_config
from lopa_ray.model.transformers_experts import register_padded_experts
from lopa_ray.model.transformers_families import tensor_names
from lopa_ray.model.transformers_model import TransformersModel, register_attention
from lopa_ray.model.transformers_package import import_transformers
from lopa_ray.model.transformers_trial import try_attention, try_forward
from lopa_ray.model.weights import Weights, check_dtype, meta_model


def read_weights(
    config: TransformersConfig, path: str | Path, *, dtype: torch.dtype, lora: str | Path | None = None
) -> Weights:
    """The parameters of `config` from the checkpoint folder `path`, one by one on the CPU, in transformers' names.

    `lora` names a PEFT adapter folder that is merged (in fp32) into the published tensors. The whole model is
    converted in host memory before the first one is given, and each is let go of with that.
    Raises `CheckpointError`, naming file and tensor, for anything missing, extra, misshapen or unreadable.
    """
    check_dtype(dtype)
    folder = Path(path)
    _refuse_attention(config)
    tensor_files = find_tensors(folder)
    if config.native is not None:
        check_tensors(folder, tensor_files, meta_model(config.native, dtype))
    rename = tensor_names(config)
    published: dict[str, str] = {}
    rows: dict[str, slice] = {}
    for stored in tensor_files.shapes:
        for name, part in rename(stored).items():
            if published.setdefault(name, stored) != stored:
                refuse_extra(folder, tensor_files, [stored], config)
            rows[name] = part
    for tied, source in _make_empty(config, dtype).all_tied_weights_keys.items():
        if tied in published and source in published:
            check_tied(tensor_files, published.pop(tied), published[source])
    adapter = LoraAdapter.load(lora) if lora is not None else None
    if adapter is not None:
        adapter.check_shapes({name: tensor_files.shapes[name] for name in published.values()})
    tensors = {
        name: _StoredTensor(stored, rows[name], tensor_files, adapter) for name, stored in published.items()
    }
    loaded = _load(config, tensors, dtype)
    if loaded.reason:
        shapes = _expected_shapes(config, dtype)
        expected = {published.get(name, name): shape for name, shape in shapes.items()}
        check_expected(folder, tensor_files, expected, config)
        # Names of converted tensors are no published ones.
        extra = [published[name] for name in sorted(loaded.extra) if name in published]
        extra = extra or [stored for stored in published.values() if stored not in expected]
        refuse_extra(folder, tensor_files, extra, config)
        raise CheckpointError(
            f"{folder}: transformers cannot make a {config.family} model of its tensors ({loaded.reason}); use weights "
            "and configuration of the same checkpoint"
        )
    yield from _give_away(loaded.model)


def random_weights(config: TransformersConfig, seed: int, dtype: torch.dtype) -> Weights:
    """Random weights on the CPU as the class of transformers initialises them, which the seed decides."""
    check_dtype(dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _make(config, dtype)
    yield from _give_away(model)


def weight_bytes(config: TransformersConfig, dtype: torch.dtype) -> int:
    """Bytes that the parameters of a model take up."""
    check_dtype(dtype)
    _refuse_attention(config)
    return sum(
        tensor.numel() * tensor.itemsize for tensor in _parameters(_make_empty(config, dtype)).values()
    )


def build_model(
    config: TransformersConfig, weights: Weights, *, dtype: torch.dtype, device: torch.device | str
) -> TransformersModel:
    """A `TransformersModel` of `config` in eval mode, without gradients, that holds `weights` on `device`.

    `weights` lie on the CPU, where they are used as they are, and never written to. Raises CheckpointError if one is
    missing, or the model computes something that this project does not.
    """
    check_dtype(dtype)
    # Elsewhere bits depend on the batch anyway, and its size would have to wait for the device.
    experts = register_padded_experts() if torch.device(device).type == "cpu" else None
    loaded = _load(config, dict(weights), dtype, experts)
    if loaded.reason:
        raise CheckpointError(f"cannot make a {config.family} model of these weights: {loaded.reason}")
    model = TransformersModel(config, loaded.model).to(device).eval()
    try_forward(model)
    return model


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    """Rows of a published tensor that is read, with the adapter's update, when transformers asks for all of them."""

    name: str
    rows: slice
    tensor_files: TensorFiles
    adapter: LoraAdapter | None

    def __getitem__(self, index: Any) -> Tensor:
        tensor = self.tensor_files.read_tensor(self.name)
        if self.adapter is not None:
            tensor = self.adapter.merge(self.name, tensor)
        # In memory of its own: in a mapped file it lies as the file has it, and CPU kernels may round by alignment.
        return tensor[self.rows][index].clone()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A causal language model of transformers, and what was wrong with its tensors."""

    model: Any
    extra: Collection[str] = ()
    reason: str = ""
    """Empty if nothing was."""


def _load(
    config: TransformersConfig, tensors: dict[str, Any], dtype: torch.dtype, experts: str | None = None
) -> _Loaded:
    """Have transformers make a model of `tensors`, by its names or published ones, on the CPU.

    `experts`: its name of how experts are computed; None: its default.
    """
    theirs = make_pretrained_config(config.config_json)
    with _without_reports():
        try:
            model, loading_info = causal_lm_class(type(theirs)).from_pretrained(
                None,
                config=theirs,
                state_dict=tensors,
                dtype=dtype,
                attn_implementation=register_attention(),
                experts_implementation=experts,
                ignore_mismatched_sizes=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except Exception as error:  # of a conversion, or of a check of its class
            return _Loaded(None, reason=f"{type(error).__name__}: {error}")
    wrong = {
        "missing": sorted(loading_info["missing_keys"]),
        "not part of it": sorted(loading_info["unexpected_keys"]),
        "of another shape": sorted(name for name, *_ in loading_info["mismatched_keys"]),
    }
    reasons = [f"{names[0]} is {what}, of {len(names)} in all" for what, names in wrong.items() if names]
    return _Loaded(model.requires_grad_(False), loading_info["unexpected_keys"], "; ".join(reasons))


def _make(config: TransformersConfig, dtype: torch.dtype) -> Any:
    theirs = make_pretrained_config(config.config_json)
    return import_transformers().AutoModelForCausalLM.from_config(
        theirs, dtype=dtype, attn_implementation=register_attention()
    )


def _make_empty(config: TransformersConfig, dtype: torch.dtype) -> Any:
    """The model on the meta device. Raises CheckpointError if its class cannot be made."""
    try:
        with torch.device("meta"):
            model = _make(config, dtype)
    except Exception as error:  # what its checks raise differs from class to class
        raise CheckpointError(
            f"transformers cannot make a {config.family} model of its configuration ({type(error).__name__}: {error}); "
            "correct config.json, or use a checkpoint of another model"
        ) from error
    return model


def _refuse_attention(config: TransformersConfig) -> None:
    """Raise CheckpointError for a class whose attention is not computed here, before its weights are read."""
    # The product over experts that transformers takes by default has no fp32 on the meta device.
    try_attention(TransformersModel(config, _make_empty(config, torch.bfloat16)).eval())


def _expected_shapes(config: TransformersConfig, dtype: torch.dtype) -> dict[str, tuple[int, ...]]:
    """Names that transformers publishes tensors by → their shapes."""
    from transformers.core_model_loading import revert_weight_conversion

    model = _make_empty(config, dtype)
    own = {
        name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys
    }
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, own).items()}


def _parameters(model: Any) -> dict[str, Tensor]:
    """All that is loaded or drawn, each once: parameters, and the buffers that checkpoints have."""
    stored = model.state_dict()
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in stored}
    return {name: tensor.detach() for name, tensor in model.named_parameters()} | buffers


def _give_away(model: Any) -> Weights:
    """The parameters of `model`, which cannot be used afterwards: each is freed as soon as the caller drops it."""
    parameters = _parameters(model)
    model.to("meta")
    for name in list(parameters):
        yield name, parameters.pop(name)


@contextmanager
def _without_reports() -> Iterator[None]:
    """Inside, transformers prints neither progress nor its own account of missing tensors."""
    from transformers.utils import logging

    was_shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_shown:
            logging.enable_progress_bar()
