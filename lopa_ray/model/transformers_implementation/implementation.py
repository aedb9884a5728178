"""TransformersImplementation: models that the package transformers runs. It loads them, since it knows how published
tensors become its own, and `Weights` have its names: what one process has converted, others on the node use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.lora import MergedAdapters
from lopa_ray.model.checkpoint.native_checkpoint import check_published
from lopa_ray.model.checkpoint.tensor_checks import check_tied, refuse_extra
from lopa_ray.model.checkpoint.tensor_files import TensorFiles, find_tensors
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.model_implementation import ModelImplementation
from lopa_ray.model.transformers_implementation.experts import register_padded_experts
from lopa_ray.model.transformers_implementation.model import TransformersModel, attend, register_attention
from lopa_ray.model.transformers_implementation.trial import try_attention, try_forward
from lopa_ray.model.transformers_models.config import causal_lm_class, make_pretrained_config
from lopa_ray.model.transformers_models.families import tensor_names
from lopa_ray.model.transformers_models.model_config import TransformersConfig
from lopa_ray.model.transformers_models.package import import_transformers
from lopa_ray.model.weights import Weights, check_dtype, meta_model

ConfigT = TypeVar("ConfigT", bound=TransformersConfig)


class TheirImplementation(ModelImplementation[ConfigT]):
    """The base for all models that transformers runs. They are not cut into shards."""

    def fitted(self) -> ConfigT:
        return self.config

    def random_weights(self, seed: int) -> Weights:
        check_dtype(self.dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._make()
        yield from self._give_away(model)

    def shard_weights(self, weights: Weights) -> Weights:
        return weights

    def weight_bytes(self) -> int:
        check_dtype(self.dtype)
        parameters = self._parameters(self._make_empty())
        return sum(tensor.numel() * tensor.itemsize for tensor in parameters.values())

    @abstractmethod
    def _make(self) -> Any: ...

    def _make_empty(self) -> Any:
        try:
            with torch.device("meta"):
                return self._make()
        except Exception as error:  # what its checks raise differs from class to class
            raise CheckpointError(
                f"transformers cannot make a {self.config.family} model of its configuration "
                f"({type(error).__name__}: {error}); correct config.json, or use a checkpoint of another model"
            ) from error

    def _parameters(self, model: Any) -> dict[str, Tensor]:
        """The tensors that are loaded or drawn, each once: parameters, and the buffers that checkpoints have."""
        stored = model.state_dict()
        buffers = {name: tensor for name, tensor in model.named_buffers() if name in stored}
        return {name: tensor.detach() for name, tensor in model.named_parameters()} | buffers

    def _give_away(self, model: Any) -> Weights:
        """The parameters of `model`, which cannot be used afterwards: each is freed when the caller drops it."""
        parameters = self._parameters(model)
        model.to("meta")
        for name in list(parameters):
            yield name, parameters.pop(name)

    def _expert_function(self) -> str | None:
        """The function that computes experts. Elsewhere than on CPUs bits depend on the batch anyway, and the host
        would wait for the numbers of rows."""
        return register_padded_experts() if torch.device(self.device).type == "cpu" else None


class TransformersImplementation(TheirImplementation[TransformersConfig]):
    """Causal language models. Weights are converted in host memory as a whole before the first one is given."""

    def read_weights(
        self, path: str | Path, source: WeightSource = AT_START, *, draft_adapter: Path | None = None
    ) -> Weights:
        check_dtype(self.dtype)
        config, folder = self.config, Path(path)
        self._refuse_attention()
        tensor_files = find_tensors(folder, source)
        if config.native is not None:
            check_published(folder, tensor_files, meta_model(config.native, self.dtype))
        rename = tensor_names(config)
        published: dict[str, str] = {}
        rows: dict[str, slice] = {}
        for stored in tensor_files.shapes:
            for name, part in rename(stored).items():
                if published.setdefault(name, stored) != stored:
                    refuse_extra(folder, tensor_files, [stored], config)
                rows[name] = part
        for tied, original in self._make_empty().all_tied_weights_keys.items():
            if tied in published and original in published:
                check_tied(tensor_files, published.pop(tied), published[original])
        shapes = {name: tensor_files.shapes[name] for name in published.values()}
        adapters = MergedAdapters.load(source, tensor_files, shapes)
        parts = {name: (stored, rows[name], tensor_files, adapters) for name, stored in published.items()}
        tensors = {name: _StoredTensor(*part) for name, part in parts.items()}
        yield from self._give_away(self._load(tensors, f"{source.folder or folder}: "))

    def weight_bytes(self) -> int:
        self._refuse_attention()
        return super().weight_bytes()

    def build_model(self, weights: Weights) -> MaskPredictor:
        check_dtype(self.dtype)
        self.config.shard(self.tp_group.size)
        causal_lm = self._load(dict(weights), experts=self._expert_function())
        model = TransformersModel(self.config, causal_lm).to(self.device).eval()
        try_forward(model)
        return model

    def _make(self) -> Any:
        return import_transformers().AutoModelForCausalLM.from_config(
            make_pretrained_config(self.config.config_json),
            dtype=self.dtype,
            attn_implementation=register_attention(attend),
        )

    def _load(self, tensors: dict[str, Any], where: str = "", experts: str | None = None) -> Any:
        """A causal language model of transformers, on the CPU, of `tensors` by its names or published names. Raises
        CheckpointError, which begins with `where`."""
        theirs = make_pretrained_config(self.config.config_json)
        with _without_reports():
            try:
                model, loading_info = causal_lm_class(type(theirs)).from_pretrained(
                    None,
                    config=theirs,
                    state_dict=tensors,
                    dtype=self.dtype,
                    attn_implementation=register_attention(attend),
                    experts_implementation=experts,
                    ignore_mismatched_sizes=True,
                    local_files_only=True,
                    output_loading_info=True,
                )
            except Exception as error:  # of a conversion, or of a check of its class
                raise self._unusable(where, f"{type(error).__name__}: {error}") from error
        wrong = {
            "missing": sorted(loading_info["missing_keys"]),
            "not part of it": sorted(loading_info["unexpected_keys"]),
            "of another shape": sorted(name for name, *_ in loading_info["mismatched_keys"]),
        }
        reasons = [f"{names[0]} is {what}, of {len(names)} in all" for what, names in wrong.items() if names]
        if reasons:
            raise self._unusable(where, "; ".join(reasons))
        return model.requires_grad_(False)

    def _unusable(self, where: str, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{where}transformers cannot make a {self.config.family} model of these weights: {reason}; use weights and "
            "configuration of the same checkpoint"
        )

    def _refuse_attention(self) -> None:
        """Raise CheckpointError for a class whose attention is not computed here, before its weights are read."""
        # The product over experts that transformers takes by default has no fp32 on the meta device.
        half = TransformersImplementation(self.config, torch.bfloat16)
        try_attention(TransformersModel(self.config, half._make_empty()).eval())


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    """Rows of a published tensor that is read, with the adapter's update, when transformers asks for all of them."""

    name: str
    rows: slice
    tensor_files: TensorFiles
    adapters: MergedAdapters

    def __getitem__(self, index: Any) -> Tensor:
        tensor = self.adapters.merge(self.name, self.tensor_files.read_tensor(self.name))
        # In memory of its own: in a mapped file it lies as the file has it, and CPU kernels may round by alignment.
        return tensor[self.rows][index].clone()


@contextmanager
def _without_reports() -> Iterator[None]:
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
