"""The shape of a dLLM, read from a Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the transformer needs to know of a checkpoint.

    `shifted` says that row p - 1 of the logits decides position p (Dream keeps the
    autoregressive shift of the model it was trained from); without it row p decides p.
    `stop_token_ids` end an answer like EOS.
    `qk_norm`: an RMS norm per head on queries and keys, before they are rotated.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    qkv_bias: bool
    tie_word_embeddings: bool
    shifted: bool
    mask_token_id: int
    eos_token_id: int
    pad_token_id: int | None
    bos_token_id: int | None
    max_position_embeddings: int
    qk_norm: bool = False
    stop_token_ids: tuple[int, ...] = ()

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of one position's keys and values: (layers, 2, KV heads, head dim)."""
        return (self.num_layers, 2, self.num_kv_heads, self.head_dim)
