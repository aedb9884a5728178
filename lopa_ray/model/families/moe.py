"""Families with mixtures of experts, one `Family` value each: keys, tensors, and the values that are supported."""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.model.families.dense import QWEN_CONFIG_KEYS, QWEN_PUBLISHED_MODULES, SDAR
from lopa_ray.model.families.family import Family
from lopa_ray.model.families.published_checkpoint import PublishedCheckpoint

_EXPERT_GATE_UP = ("model.layers.{i}.mlp.experts.{e}.gate_proj", "model.layers.{i}.mlp.experts.{e}.up_proj")

_EXPERT_DOWN = ("model.layers.{i}.mlp.experts.{e}.down_proj",)

SDAR_MOE = replace(
    SDAR,
    name="sdar_moe",
    model_type="sdar_moe",
    architecture="SDARMoeForCausalLM",
    # The published class leaves weights as they are unless it is told to divide them by their sum.
    config_defaults={**SDAR.config_defaults, "norm_topk_prob": False},
    # Published decoders have the mask token as a constant.
    mask_token_id=151669,
    supported_values={
        **SDAR.supported_values,
        "norm_topk_prob": (True,),
        "decoder_sparse_step": (1, None),
        "mlp_only_layers": ([], None),
    },
    published_modules={
        **SDAR.published_modules,
        "layers.{i}.mlp.router": ("model.layers.{i}.mlp.gate",),
        "layers.{i}.mlp.experts.gate_up": _EXPERT_GATE_UP,
        "layers.{i}.mlp.experts.down": _EXPERT_DOWN,
    },
    router="softmax",
    expert_keys={
        "count": "num_experts",
        "per_token": "num_experts_per_tok",
        "width": "moe_intermediate_size",
    },
    transformers_type="qwen3_moe",
    checked_against="recorded logits, routing and decodes of SDAR-MoE; transformers' Qwen3-MoE",
    checkpoints=(PublishedCheckpoint("JetLM/SDAR-30B-A3B-Chat", 56.9, "models/sdar-30b-a3b-chat"),),
    tiny_model="sdar-moe-tiny-3l",
)

LLADA2 = Family(
    name="llada2",
    model_type="llada2_moe",
    architecture="LLaDA2MoeModelLM",
    config_keys=QWEN_CONFIG_KEYS | {"partial_rotary_factor": "partial_rotary_factor"},
    # As the published configuration class. How experts are grouped has to be in the file.
    config_defaults={
        "tie_word_embeddings": False,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 2.5,
        "num_shared_experts": 0,
        "first_k_dense_replace": 0,
        "expert_capacity": 0,
        "block_size": 32,
    },
    mask_token_id=156895,
    supported_values={
        "hidden_act": ("silu",),
        "use_bias": (False, None),
        "use_qkv_bias": (False, None),
        "use_sliding_window": (False, None),
        "score_function": ("sigmoid", None),
    },
    published_modules=QWEN_PUBLISHED_MODULES
    | {
        "embed": ("model.word_embeddings",),
        "layers.{i}.qkv": ("model.layers.{i}.attention.query_key_value",),
        "layers.{i}.q_norm": ("model.layers.{i}.attention.query_layernorm",),
        "layers.{i}.k_norm": ("model.layers.{i}.attention.key_layernorm",),
        "layers.{i}.o": ("model.layers.{i}.attention.dense",),
        "layers.{i}.mlp.router": ("model.layers.{i}.mlp.gate",),
        "layers.{i}.mlp.experts.gate_up": _EXPERT_GATE_UP,
        "layers.{i}.mlp.experts.down": _EXPERT_DOWN,
        "layers.{i}.mlp.shared.gate_up": (
            "model.layers.{i}.mlp.shared_experts.gate_proj",
            "model.layers.{i}.mlp.shared_experts.up_proj",
        ),
        "layers.{i}.mlp.shared.down": ("model.layers.{i}.mlp.shared_experts.down_proj",),
    },
    router="sigmoid",
    expert_keys={
        "count": "num_experts",
        "per_token": "num_experts_per_tok",
        "width": "moe_intermediate_size",
        "shared": "num_shared_experts",
        "dense_layers": "first_k_dense_replace",
        "groups": "n_group",
        "kept_groups": "topk_group",
        "scale": "routed_scaling_factor",
        "capacity": "expert_capacity",
        "block_size": "block_size",
    },
    eos_key="pad_token_id",
    transformers_type="glm4_moe",
    transformers_expert_keys={"count": "n_routed_experts", "shared": "n_shared_experts"},
    checked_against="recorded logits and routing, decodes of LLaDA2.0, 2.1 and 2.2, DMax and MultiBD; transformers' "
    "GLM-4-MoE",
    checkpoints=(
        PublishedCheckpoint("inclusionAI/LLaDA2.0-mini", 30.3, "models/llada2.0-mini"),
        PublishedCheckpoint("inclusionAI/LLaDA2.0-flash", 191.7, "models/llada2.0-flash"),
        PublishedCheckpoint(
            "inclusionAI/LLaDA2.1-mini", 30.3, "models/llada2.1-mini", "HumanEval+ 80.5 at TPF 12.3"
        ),
        PublishedCheckpoint(
            "inclusionAI/LLaDA2.1-flash", 191.7, "models/llada2.1-flash", "HumanEval+ 89.6 at TPF 13.8"
        ),
        PublishedCheckpoint("inclusionAI/LLaDA2.2-flash", 191.7, "models/llada2.2-flash"),
        PublishedCheckpoint("Zigeng/DMax-16B", 30.3, "models/dmax-16b"),
        PublishedCheckpoint(
            "Zigeng/DMax-Math-16B", 30.3, "models/dmax-16b", "GSM8K at TPF 5.47 (LLaDA2.0-mini: 2.04)"
        ),
        PublishedCheckpoint(
            "Zigeng/DMax-Coder-16B", 30.3, "models/dmax-16b", "MBPP at TPF 5.86 (LLaDA2.0-mini: 2.71)"
        ),
        PublishedCheckpoint(
            "SJTU-DENG-Lab/MBD-Math-LLaDA2-mini-16B", 30.3, "models/mbd-llada2-mini", "GSM8K 92.0 at TPF 5.55"
        ),
        PublishedCheckpoint(
            "SJTU-DENG-Lab/MBD-Code-LLaDA2-mini-16B",
            30.3,
            "models/mbd-llada2-mini",
            "HumanEval+ 80.5 at TPF 7.85",
        ),
        PublishedCheckpoint(
            "SJTU-DENG-Lab/MBD-Math-LLaDA2-mini-DMax-16B",
            30.3,
            "models/mbd-llada2-mini-dmax",
            "GSM8K 91.7 at TPF 8.95",
        ),
        PublishedCheckpoint(
            "SJTU-DENG-Lab/MBD-Code-LLaDA2-mini-DMax-16B",
            30.3,
            "models/mbd-llada2-mini-dmax",
            "HumanEval+ 77.4 at TPF 10.78",
        ),
    ),
    tiny_model="llada2-tiny-3l",
    shifted=False,
    qk_norm=True,
)

EXPERT_FAMILIES = (SDAR_MOE, LLADA2)
