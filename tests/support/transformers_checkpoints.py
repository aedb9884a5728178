"""Tiny models of classes of the package transformers: saved by it in its own layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lopa_ray.engine.config import Config
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "mask_token_id": 127,
    "eos_token_id": 126,
    "bos_token_id": 125,
    "pad_token_id": 124,
    "initializer_range": 0.3,
}
"""What most classes call these, and weights large enough for probabilities to spread."""

EXPERTS = {
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "glm4_moe": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "use_qk_norm": True,
    },
}


def config_json(model_type: str, **changes: Any) -> dict[str, Any]:
    """A config.json of that class."""
    return {"model_type": model_type, **SHAPE, **EXPERTS.get(model_type, {}), **changes}


def save_checkpoint(model_type: str, folder: Path, **changes: Any) -> Any:
    """A random model, saved by transformers; returns it, with attention as transformers computes it."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type].from_dict(config_json(model_type, **changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    return model


def bidirectional_logits(model: Any, ids: list[int]) -> Tensor:
    """What transformers computes where every row sees every row, [R, V]."""
    with torch.inference_mode():
        mask = torch.zeros(1, 1, len(ids), len(ids))
        logits: Tensor = model(torch.tensor([ids]), attention_mask=mask).logits[0]
    return logits


def runner_of(folder: Path, **model: Any) -> BranchRunner:
    """The runner of a checkpoint folder; `model` are `ModelSettings`."""
    settings = {"path": str(folder), "max_num_seqs": 2, "max_model_len": 64, **model}
    return build_runner(ModelSpec.read(Config.parse({"model": settings})))
