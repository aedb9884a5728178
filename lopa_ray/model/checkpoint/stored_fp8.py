"""StoredFp8: the fp8 weights of a checkpoint's files, with the scales that belong to them.

Shape suffixes: O outputs (rows), I inputs (columns), G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.kernels.fp8 import FP8, unfold
from lopa_ray.model.checkpoint.tensor_files import FLOAT_DTYPES, TensorFiles
from lopa_ray.model.config import Fp8Scales

STORED_FP8 = "F8_E4M3"  # what safetensors calls the type of fp8 weights
WEIGHT_DTYPES: tuple[torch.dtype, ...] = (*FLOAT_DTYPES, FP8)

_SCALE_DTYPES = (*FLOAT_DTYPES, torch.float8_e8m0fnu)

SAVED_SCALE_NAME = "weight_scale"  # the name under which scales are saved here

_SCALE_NAMES = ("weight_scale_inv", SAVED_SCALE_NAME)
"""transformers' FineGrainedFP8 has the first name, compressed-tensors the second. Both are what weights are multiplied
by."""

_ACTIVATION_SCALE_NAMES = ("input_scale", "activation_scale")
"""Static scales of activations. They are not read: a product here scales each row by what is in it."""


@dataclass(frozen=True, slots=True)
class StoredFp8:
    """The weights that are stored in fp8, and their scales."""

    scales: Fp8Scales
    tensor_files: TensorFiles
    scale_names: Mapping[str, str]  # weight in fp8 → the tensor with its scales

    @staticmethod
    def find(
        scales: Fp8Scales | None, tensor_files: TensorFiles, shapes: Mapping[str, tuple[int, ...]]
    ) -> StoredFp8:
        """The weights of `shapes` (published name → shape) that `tensor_files` has in fp8; none without
        `scales`. Raises `CheckpointError` for scales that are missing or have another shape than `scales` says."""
        names: dict[str, str] = {}
        if scales is None:
            return StoredFp8(Fp8Scales(kind="tensor"), tensor_files, names)
        for weight, shape in shapes.items():
            if len(shape) != 2 or tensor_files.dtypes.get(weight) != STORED_FP8:
                continue
            module = weight.removesuffix("weight")
            present = [name for end in _SCALE_NAMES if (name := module + end) in tensor_files.shapes]
            if not present:
                raise CheckpointError(
                    f"{tensor_files.files[weight]}: tensor {weight} is stored in fp8, and its scales are missing: "
                    f"neither {' nor '.join(module + end for end in _SCALE_NAMES)} is there; download it again"
                )
            names[weight] = present[0]
            _check_shape(scales, tensor_files, present[0], weight, shape)
        return StoredFp8(scales, tensor_files, names)

    def __contains__(self, weight: str) -> bool:
        return weight in self.scale_names

    def beside(self) -> Iterator[str]:
        for weight in self.tensor_files.given.keys() - self.scale_names:  # files may have its scales still
            yield from (
                weight.removesuffix("weight") + end for end in (*_SCALE_NAMES, *_ACTIVATION_SCALE_NAMES)
            )
        for weight, scale in self.scale_names.items():
            yield scale
            yield from (weight.removesuffix("weight") + end for end in _ACTIVATION_SCALE_NAMES)

    def row_scales(self, weight: str) -> Tensor:
        """Scales fp32 [O, G] of a weight, one per row and group of `Fp8Scales.width` inputs. Raises `CheckpointError`
        for one that is not a finite number above 0."""
        name = self.scale_names[weight]
        rows, inputs = self.tensor_files.shapes[weight]
        scale = self.tensor_files.read_tensor(name, _SCALE_DTYPES).float()
        wrong = ~(scale > 0) | scale.isinf()
        if wrong.any():
            raise CheckpointError(
                f"{self.tensor_files.files[name]}: tensor {name} has the scale {scale[wrong][0].item()}; scales are "
                "finite numbers above 0: download the checkpoint again"
            )
        if self.scales.block is None:
            return scale.reshape(-1, 1).expand(rows, 1)
        per_row = scale.repeat_interleave(min(self.scales.block[0], rows), dim=0)[:rows]
        return per_row[:, : -(-inputs // self.scales.width(inputs))]

    def kept(self, parameter: str, weight: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The scales, fp32 [O, G], and the fp8 tensor `stored` [O, I] of a weight, under the names of an own parameter
        of which they are a part. Raises as above."""
        yield f"{parameter.removesuffix('weight')}group_scale", self.row_scales(weight)
        yield parameter, stored

    def unfold(self, weight: str, stored: Tensor) -> Tensor:
        """The fp8 tensor `stored` [O, I] of a weight times its scales → fp32 [O, I] on the CPU. Raises as above."""
        return unfold(stored, self.row_scales(weight), self.scales.width(stored.shape[1]))


def _check_shape(
    scales: Fp8Scales, tensor_files: TensorFiles, name: str, weight: str, shape: tuple[int, ...]
) -> None:
    rows, inputs = shape
    allowed: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1))
    if scales.kind == "channel":
        allowed = ((rows, 1), (rows,))
    elif scales.block is not None:
        allowed = ((-(-rows // scales.block[0]), -(-inputs // scales.block[1])),)
    got = tensor_files.shapes[name]
    if got not in allowed:
        raise CheckpointError(
            f"{tensor_files.files[name]}: tensor {name} has shape {list(got)}, but the scales per {scales.kind} of "
            f"{weight} {list(shape)} have {' or '.join(str(list(one)) for one in allowed)}; weights and "
            "quantization_config are of different checkpoints: download both again"
        )
