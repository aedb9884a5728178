"""NativeConfig: the architecture of a model that this project's own transformer runs, from its `config.json`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias

from lopa_ray.errors import SettingsError
from lopa_ray.model.experts_config import ExpertParallel, ExpertsConfig
from lopa_ray.model.yarn import Yarn

Quantization: TypeAlias = Literal["none", "w8", "w8a8", "fp8"]
"""The format in which a model has its linear layers."""

Implementation: TypeAlias = Literal["auto", "native", "transformers"]

QUANTIZATION_CONFIGS: dict[Quantization, dict[str, Any]] = {
    "w8": {"quant_method": "lopa_ray_int8", "format": "w8"},
    "w8a8": {"quant_method": "lopa_ray_int8", "format": "w8a8"},
}
"""`quantization_config` in the config.json of a checkpoint that was saved in int8."""


DraftWidths: TypeAlias = tuple[tuple[str, int], ...]
"""(linear layer, width of its draft adapter), of those that have one: the ranks of all modules that it fuses."""

DraftHeadShape: TypeAlias = tuple[int, int]
"""The number of tokens that a draft head may draft, and the width of its MLP."""

DRAFT_LAYERS = ("qkv", "o", "mlp.gate_up", "mlp.down")
"""The linear layers that may have a draft adapter, in a layer without experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Scales:
    """The weights of an fp8 checkpoint that share a scale: all of a tensor, of a row (channel), or of a `block` of rows
    and columns. `all_layers`: layers that the checkpoint has floating are converted when they are loaded, on every
    device, as `model.quantization` demands. `shards`: into how many the model is cut of which this is one."""

    kind: Literal["tensor", "channel", "block"]
    block: tuple[int, int] | None = None
    all_layers: bool = False
    shards: int = 1

    def width(self, inputs: int, *, cut: bool = False) -> int:
        """Inputs of a row that share a scale, in a layer of `inputs`. `cut`: these are one shard's part of the layer.
        If a shard boundary falls inside a block, groups shrink to the gcd, so every shard has whole groups."""
        whole = inputs * self.shards if cut else inputs
        if self.block is None or whole <= self.block[1]:
            return inputs
        columns = self.block[1]
        return columns if whole == inputs or inputs % columns == 0 else math.gcd(columns, inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Properties of a model that runner, cache and vocabulary need, whatever runs it. `shifted`: row p - 1 of the
    logits decides position p, as in the autoregressive model that Dream was trained from; else row p does. Ids from
    `unpadded_vocab_size` on, if given, are padding and are never chosen. `canvas_length`: positions that a model
    without a mask token (`NO_MASK`) denoises together, from random tokens; 0: the model fills masks. `delete_token_id`,
    `split_token_id`: see `Vocabulary`."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    shifted: bool
    mask_token_id: int
    eos_token_id: int
    stop_token_ids: tuple[int, ...] = ()
    unpadded_vocab_size: int | None = None
    canvas_length: int = 0
    delete_token_id: int | None = None
    split_token_id: int | None = None

    @property
    def routing_block(self) -> int:
        """Positions per block, from 0 on, whose rows have to be in one forward; 0: any rows may be."""
        return 0

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of one position's keys and values: (layers, 2, KV heads, head dim)."""
        return (self.num_layers, 2, self.num_kv_heads, self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig(ModelShape):
    """The architecture of a model that this project's own transformer runs.

    `qk_norm`: an RMS norm per head on queries and keys, before they are rotated.
    `partial_rotary_factor`: the share of a head, from its first dim on, that is rotated.
    `yarn`: how rotary frequencies are stretched and queries scaled; None: neither is done.
    `experts`: the mixture of experts in place of the MLP; None: all layers are dense.
    `draft_widths`: the draft adapters of each layer. `draft_head`: the draft head beside the LM head, if there is one.
    `quantization`: the format of the linear layers between embedding and LM head. `fp8`: their scales if it is fp8.
    `batch_invariant`: whether the bits of a row do not depend on the other rows of a forward.
    """

    implementation: ClassVar[Implementation] = "native"

    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    qkv_bias: bool
    tie_word_embeddings: bool
    pad_token_id: int | None
    bos_token_id: int | None
    max_position_embeddings: int
    qk_norm: bool = False
    partial_rotary_factor: float = 1.0
    yarn: Yarn | None = None
    experts: ExpertsConfig | None = None
    draft_widths: DraftWidths = ()
    draft_head: DraftHeadShape | None = None
    quantization: Quantization = "none"
    fp8: Fp8Scales | None = None
    batch_invariant: bool = False

    def with_batch_invariant(self, value: bool) -> Self:
        """Products of fp8 are not invariant, so it is unfolded."""
        return replace(self.unfolded(), batch_invariant=True) if value else self

    def with_quantization(self, quantization: Quantization) -> Self:
        """The same model in that format; with none in the format that it has. fp8 has a scale per output channel, or
        the checkpoint's scales. Raises SettingsError for fp8 and a model in int8."""
        if quantization == "fp8":
            if self.quantization in QUANTIZATION_CONFIGS:
                raise SettingsError(
                    "model.quantization: got 'fp8' for a model whose weights are int8 already; allowed there: none, "
                    f"{' or '.join(QUANTIZATION_CONFIGS)}; choose one of them, or load the checkpoint that was "
                    "quantised"
                )
            scales = self.fp8 or Fp8Scales(kind="channel")
            return replace(self, quantization="fp8", fp8=replace(scales, all_layers=True))
        if quantization in ("none", self.quantization):
            return self
        return replace(self, quantization=quantization, fp8=None)

    @property
    def conversion(self) -> Quantization:
        """The format to which a checkpoint's weights are converted when they are loaded; none: no conversion, or from
        fp8 to floating weights."""
        return "none" if self.fp8 is not None and not self.fp8.all_layers else self.quantization

    def unfolded(self) -> Self:
        return replace(self, quantization="none", fp8=None) if self.quantization == "fp8" else self

    def with_draft_adapter(self, widths: DraftWidths) -> Self:
        return replace(self, draft_widths=widths)

    def draft_width(self, layer: str) -> int:
        """The width of the adapter of one of `DRAFT_LAYERS`; 0: it has none."""
        return dict(self.draft_widths).get(layer, 0)

    def with_expert_parallel(self, parallel: ExpertParallel) -> Self:
        """See `ExpertsConfig.parallel`. Raises SettingsError for true and a model without experts."""
        if self.experts is not None:
            return replace(self, experts=replace(self.experts, parallel=parallel))
        if parallel is True:
            raise SettingsError(
                f"group.expert_parallel: got true for a {self.family} model, which has no experts; allowed there: auto "
                "or false"
            )
        return self

    def shard(self, size: int) -> Self:
        """The configuration of one of `size` tensor parallel shards. Raises SettingsError if heads, KV heads and MLP
        width cannot be spread evenly."""
        if size not in self.shard_sizes:
            sizes = ", ".join(f"{count} {what}" for what, count in self._cut_sizes(size).items())
            raise SettingsError(
                f"group.tensor_parallel_size: got {size} for a model with {sizes}; allowed: divisors of all of these "
                f"({', '.join(map(str, self.shard_sizes))}); choose one of them"
            )
        return replace(
            self,
            num_heads=self.num_heads // size,
            num_kv_heads=self.num_kv_heads // size,
            intermediate_size=self.intermediate_size // size,
            experts=self.experts and replace(self.experts, shards=size),
            fp8=self.fp8 and replace(self.fp8, shards=size),
        )

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        return tuple(
            size
            for size in range(1, self.num_kv_heads + 1)
            if not any(count % size for count in self._cut_sizes(size).values())
        )

    def _cut_sizes(self, size: int) -> dict[str, int]:
        sizes = {"heads": self.num_heads, "KV heads": self.num_kv_heads}
        if self.experts is None or self.experts.dense_layers:
            sizes["columns of MLP"] = self.intermediate_size
        if self.experts is not None and not self.experts.are_whole(size):
            sizes["columns of expert"] = self.experts.width
        elif self.experts is not None:
            if self.experts.shared:
                sizes["columns of shared expert"] = self.experts.shared_columns
            if self.experts.count < size:  # else each shard has one or more, whether or not they are as many
                sizes["experts"] = self.experts.count
        return sizes

    @property
    def routing_block(self) -> int:
        return self.experts.block_size if self.experts is not None and self.experts.capacity else 0

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    def is_dense(self, layer: int) -> bool:
        return self.experts is None or layer < self.experts.dense_layers
