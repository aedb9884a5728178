"""Families of dense models, one `Family` value each: keys, tensors, and the values that are supported."""

from __future__ import annotations

from lopa_ray.model.family import Family

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
    "use_mrope": (False, None),
    "partial_rotary_factor": (1.0, None),
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

_QWEN_EXTRA_CONFIG = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rope_scaling": None,
    "sliding_window": None,
    "use_cache": True,
    "use_sliding_window": False,
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
    shifted=True,
    qkv_bias=True,
    extra_config=_QWEN_EXTRA_CONFIG,
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
    shifted=True,
    qkv_bias=True,
    extra_config=_QWEN_EXTRA_CONFIG,
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
    shifted=False,
    qk_norm=True,
    extra_config=_QWEN_EXTRA_CONFIG | {"attention_bias": False, "use_cache": False},
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
        "partial_rotary_factor": (1.0, None),
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
    shifted=False,
    extra_config={
        "activation_type": "silu",
        "alibi": False,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "include_bias": False,
        "include_qkv_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "multi_query_attention": None,
        "rope": True,
        "rope_full_precision": True,
        "scale_logits": False,
    },
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
        "partial_rotary_factor": (1.0, None),
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
    shifted=False,
    reads_yarn=True,
    extra_config={
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dlm_paradigm": "bidirectional",
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "sliding_window": None,
        "use_cache": False,
    },
)
