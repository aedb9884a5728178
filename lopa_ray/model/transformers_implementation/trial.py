"""A trial of a model of the package transformers: does it compute what its modules and this project's attention do?

Its classes are many, and their configurations do not tell all that they do. Two forwards of three rows do.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.transformers_implementation.model import (
    PackedStep,
    TransformersModel,
    UnsupportedModelError,
)

_log = logging.getLogger("lopa.transformers")

ROWS = 3
POISONED = 1  # the middle row is NaN, so every row that depends on it becomes NaN

LOGIT = 100.0  # more than soft-capping leaves as it is


class _OwnRowAttention:
    """Attention in which each row sees itself alone; keeps a record of its calls."""

    def __init__(self, model: TransformersModel) -> None:
        self.layers: list[int] = []
        config = model.config
        self._query = (ROWS, config.num_heads, config.head_dim)
        self._key = (ROWS, config.num_kv_heads, config.head_dim)
        self._dtype = model.embed.weight.dtype

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `AttentionFn`. Raises UnsupportedModelError for shapes and types that K/V caches do not have."""
        for name, heads, shape in (
            ("queries", q, self._query),
            ("keys", k, self._key),
            ("values", v, self._key),
        ):
            if tuple(heads.shape) != shape or heads.dtype != self._dtype:
                raise UnsupportedModelError(
                    f"{name} of layer {layer} are {heads.dtype} {list(heads.shape[1:])} per row, and not "
                    f"{self._dtype} {list(shape[1:])}"
                )
        self.layers.append(layer)
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


@torch.inference_mode()
def try_attention(model: TransformersModel) -> None:
    """Raise CheckpointError if `model`, which has no weights yet, asks for other attention than an `AttentionFn` gives.
    It is on the meta device, where not every class can run: what fails there is left to `try_forward`."""
    attention = _OwnRowAttention(model)
    ids = torch.arange(ROWS, device=model.embed.weight.device)
    try:
        model(ids, ids, attention)
        _check_layers(model, attention)
    except UnsupportedModelError as error:
        raise _refusal(model, error) from error
    except Exception as error:
        _log.debug("%s is not tried without weights: %s", type(model.causal_lm).__name__, error)


@torch.inference_mode()
def try_forward(model: TransformersModel) -> None:
    """Raise CheckpointError if `model` asks for other attention than an `AttentionFn` gives, if its rows depend on each
    other by other ways, or if it computes more after its last norm than the LM head does."""
    try:
        clean, poisoned = _try_head(model), _poisoned_rows(model)
        others = [row for row in range(ROWS) if row != POISONED]
        if not torch.equal(clean[others].isnan(), poisoned[others].isnan()):
            raise UnsupportedModelError("its rows depend on each other by other ways than attention")
        if not poisoned[POISONED].isnan().any():
            raise UnsupportedModelError("its rows do not depend on their embeddings")
    # Whatever one of its many classes raises is why it cannot run here.
    except Exception as error:
        raise _refusal(model, error) from error


def _refusal(model: TransformersModel, error: Exception) -> CheckpointError:
    shown = str(error) if isinstance(error, UnsupportedModelError) else f"{type(error).__name__}: {error}"
    return CheckpointError(
        f"the {model.config.family} model cannot be run by transformers as {type(model.causal_lm).__name__}: "
        f"{shown}; use a checkpoint of another model"
    )


def _check_layers(model: TransformersModel, attention: _OwnRowAttention) -> None:
    if attention.layers != list(range(model.config.num_layers)):
        raise UnsupportedModelError(
            f"of its {model.config.num_layers} layers, those that call attention are {attention.layers}"
        )


def _try_head(model: TransformersModel) -> Tensor:
    seen: dict[str, Tensor] = {}

    def keep_rows(module: Any, args: Any, output: Any) -> None:
        seen["rows"] = output.last_hidden_state

    def replace_logits(module: Any, args: Any, output: Tensor) -> Tensor:
        seen["head input"] = args[0]
        return torch.full_like(output, LOGIT)

    attention = _OwnRowAttention(model)
    ids = torch.arange(ROWS, device=model.embed.weight.device)[None]
    with (
        model.causal_lm.base_model.register_forward_hook(keep_rows),
        model.lm_head.register_forward_hook(replace_logits),
    ):
        output = model.causal_lm(
            input_ids=ids,
            position_ids=ids,
            use_cache=False,
            return_dict=True,
            packed_step=PackedStep(attention, None),
        )
    _check_layers(model, attention)
    if seen.keys() != {"rows", "head input"}:
        raise UnsupportedModelError("its head does not call its base model and its LM head")
    # NaN in both places is the same, too.
    if not torch.allclose(seen["rows"], seen["head input"], rtol=0.0, atol=0.0, equal_nan=True):
        raise UnsupportedModelError("it changes rows on the way to its LM head")
    if not (output.logits == LOGIT).all():
        raise UnsupportedModelError("it changes the logits of its LM head, by a scale or by soft-capping")
    return seen["rows"][0]


def _poisoned_rows(model: TransformersModel) -> Tensor:
    def poison(module: Any, args: Any, output: Tensor) -> Tensor:
        return output.index_fill(1, torch.tensor([POISONED], device=output.device), torch.nan)

    ids = torch.arange(ROWS, device=model.embed.weight.device)
    with model.embed.register_forward_hook(poison):
        rows: Tensor = model(ids, ids, _OwnRowAttention(model))
    return rows
