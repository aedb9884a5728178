"""Whether a checkpoint's files have the tensors of a model, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.tensor_files import INDEX, WEIGHTS, TensorFiles
from lopa_ray.model.config import ModelShape


def check_tensors(
    folder: Path,
    tensor_files: TensorFiles,
    expected: Mapping[str, tuple[int, ...]],
    config: ModelShape,
    *,
    tied: Mapping[str, str],
    is_ignored: Callable[[str], bool],
) -> None:
    """Raise `CheckpointError` unless `tensor_files` has exactly the tensors `expected` (published name → shape).
    Copies in `tied` (copy → source) and ignored tensors may also be present."""
    described = f"{folder / 'config.json'}"
    missing = [name for name in expected if name not in tensor_files.shapes]
    if missing:
        files = sorted(set(tensor_files.files.values()))
        place = files[0].parent / INDEX if len(files) > 1 else (*files, folder / WEIGHTS)[0]
        raise CheckpointError(
            f"{place}: tensor {_name_tensors(missing)} missing; {described} describes a {config.family} model with "
            f"{config.num_layers} layers that needs it: download the checkpoint again, or correct the configuration"
        )
    for name, shape in expected.items():
        if tensor_files.shapes[name] != shape:
            raise CheckpointError(
                f"{tensor_files.files[name]}: tensor {name} has shape {list(tensor_files.shapes[name])}, but "
                f"{described} requires {list(shape)}; use weights and configuration of the same checkpoint"
            )
    copies = {name: source for name, source in tied.items() if name in tensor_files.shapes}
    known = expected.keys() | copies.keys()
    refuse_extra(
        folder, tensor_files, [n for n in tensor_files.shapes if n not in known and not is_ignored(n)], config
    )
    for copy, source in copies.items():
        check_tied(tensor_files, copy, source)


def refuse_extra(folder: Path, tensor_files: TensorFiles, extra: list[str], config: ModelShape) -> None:
    """Raise `CheckpointError` if there are tensors that are not part of the model."""
    if extra:
        raise CheckpointError(
            f"{tensor_files.files[extra[0]]}: tensor {_name_tensors(extra)} not part of the {config.family} model with "
            f"{config.num_layers} layers that {folder / 'config.json'} describes; use weights and configuration of "
            "the same checkpoint"
        )


def check_tied(tensor_files: TensorFiles, copy: str, source: str) -> None:
    """Raise `CheckpointError` unless a tensor of a model with tied embeddings equals its source."""
    if source in tensor_files.given and copy not in tensor_files.given:
        return  # the copy in the file is of the weights before
    same_shape = tensor_files.shapes[copy] == tensor_files.shapes[source]
    if not same_shape or not torch.equal(tensor_files.read_tensor(copy), tensor_files.read_tensor(source)):
        raise CheckpointError(
            f"{tensor_files.files[copy]}: tensor {copy} differs from {source}, but config.json has "
            "tie_word_embeddings = true; set it to false if the head is its own"
        )


def _name_tensors(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more) are"
