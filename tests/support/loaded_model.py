"""What a loaded model holds and computes, for comparisons."""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.transformer import Transformer

IDS = [5, 9, 127, 127, 3, 127, 60, 127]


def logits(model: Transformer) -> Tensor:
    return BranchRunner(model, max_num_seqs=1, max_model_len=16).logits(IDS)


def state(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.data for name, parameter in model.named_parameters()}


def same_weights(model: Transformer, wanted: Transformer) -> bool:
    assert state(model).keys() == state(wanted).keys()
    return all(torch.equal(state(model)[name], value) for name, value in state(wanted).items())
