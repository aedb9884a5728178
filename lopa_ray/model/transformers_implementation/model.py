"""TransformersModel: a causal language model of the package transformers, with the interface of `Transformer`.

Packed rows are one sequence to it. Attention is handed in with the call: transformers looks attention functions up by
name, and passes arguments that it does not know on to them. No function for masks has that name, so none is made.

Shape suffixes: R rows, D hidden size, H query heads, K key/value heads, E head dim, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn

from lopa_ray.model.soft_inputs import embed_softly
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.transformer import AttentionFn
from lopa_ray.model.transformers_models.model_config import TransformersConfig
from lopa_ray.model.transformers_models.package import import_transformers

HARMLESS_ARGUMENTS = ("dropout", "is_causal", "position_ids")
"""Arguments that modules of transformers pass to every attention function, and that this function ignores. Dropout is
for training, and the step decides which positions a row sees."""


class UnsupportedModelError(Exception):
    """A model computes something that this project does not support."""


class PackedStep(NamedTuple):
    """The arguments that a call of the model hands to the attention of all layers."""

    attention: AttentionFn
    kv: Tensor | None  # [L, 2, R, K, E]


@cache
def register_attention(attend: Callable[..., Any]) -> str:
    """Make an attention function known to transformers; returns its name there."""
    name = attend.__module__
    import_transformers().AttentionInterface.register(name, attend)
    return name


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_step: PackedStep | None = None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: query [1, H, R, E], key and value [1, K, R, E] → [1, R, H, E] in
    their dtype. Raises UnsupportedModelError for arguments that would change the result."""
    if packed_step is None:
        kind = type(module).__name__
        raise UnsupportedModelError(f"{kind} does not pass the call's arguments on to its attention")
    for name, given in {**others, "attention_mask": attention_mask}.items():
        if name not in HARMLESS_ARGUMENTS and given is not None and given is not False:
            shown = list(given.shape) if isinstance(given, Tensor) else given
            raise UnsupportedModelError(f"attention of {type(module).__name__} asks for {name} = {shown!r}")
    q, k, v = (heads[0].transpose(0, 1).contiguous() for heads in (query, key, value))
    # Kernels here scale by E ** -0.5.
    factor = 1.0 if scaling is None else scaling * q.shape[-1] ** 0.5
    if abs(factor - 1.0) > 1e-6:
        q = q * factor
    layer = module.layer_idx
    assert isinstance(layer, int)
    if packed_step.kv is not None:
        packed_step.kv[layer, 0].copy_(k)
        packed_step.kv[layer, 1].copy_(v)
    return packed_step.attention(layer, q, k, v)[None], None


class TransformersModel(nn.Module):
    """Token ids in, normed hidden rows out; `lm_head` turns chosen rows into logits. See `MaskPredictor`."""

    def __init__(self, config: TransformersConfig, causal_lm: Any) -> None:
        super().__init__()
        self.config = config
        self.shard_config = config
        self.tp_group: TensorParallelGroup = SINGLE_SHARD
        self.causal_lm: Any = causal_lm

    @property
    def embed(self) -> nn.Embedding:
        embed: nn.Embedding = self.causal_lm.get_input_embeddings()
        return embed

    @property
    def lm_head(self) -> nn.Linear:
        """Hidden rows [N, D] → logits [N, V]."""
        lm_head: nn.Linear = self.causal_lm.get_output_embeddings()
        return lm_head

    draft_head: None = None

    @property
    def learned_positions(self) -> int | None:
        tables = [
            module.num_embeddings
            for module in self.causal_lm.modules()
            if isinstance(module, nn.Embedding) and module is not self.embed
        ]
        return min(tables, default=None)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: AttentionFn,
        kv: Tensor | None = None,
        input_weights: Tensor | None = None,
        draft_rows: Tensor | None = None,
    ) -> Tensor:
        """See `MaskPredictor.__call__`."""
        if input_weights is None:
            inputs = {"input_ids": ids[None]}
        else:
            soft = embed_softly(self.embed, ids, input_weights, self.config.mask_token_id)
            inputs = {"inputs_embeds": soft[None]}
        output = self.causal_lm.base_model(
            **inputs,
            position_ids=positions[None],
            use_cache=False,
            return_dict=True,
            packed_step=PackedStep(attention, kv),
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden
