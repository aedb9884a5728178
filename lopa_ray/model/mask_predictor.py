"""MaskPredictor: what a runner needs of a model, native or of the package transformers."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from lopa_ray.model.draft_head import DraftHead
from lopa_ray.model.linear import Linear
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.transformer import AttentionFn


class MaskPredictor(Protocol):
    """Token ids in, normed hidden rows out; `lm_head` turns chosen rows into logits."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def shard_config(self) -> ModelConfig:
        """The shape of what this shard has; its own but for the vocabulary."""

    @property
    def tp_group(self) -> TensorParallelGroup: ...

    @property
    def embed(self) -> nn.Embedding:
        """Rows have the device and dtype of its weight."""

    @property
    def lm_head(self) -> nn.Linear | Linear:
        """Hidden rows [N, D] → logits [N, V], of this shard."""

    @property
    def draft_head(self) -> DraftHead | None:
        """Drafts what follows hidden rows [B, D]; None: the model has none."""

    @property
    def learned_positions(self) -> int | None:
        """How many positions the model has embeddings for; None: positions are rotations."""

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: AttentionFn,
        kv: Tensor | None = None,
        input_weights: Tensor | None = None,
        draft_rows: Tensor | None = None,
    ) -> Tensor:
        """Run int64 ids [R] at absolute int64 positions [R]; returns hidden rows [R, D] after the last norm, in the
        model's dtype. `kv` [L, 2, R, K, E], if given, receives the rotated keys and the values of all layers. With
        `input_weights`, floating [R], inputs are soft: see `embed_softly`. Rows with a 1 in `draft_rows`, floating [R],
        go through the draft adapter, if the model has one."""
