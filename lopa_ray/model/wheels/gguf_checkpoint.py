"""A GGUF file of a model of Llama's architecture → a checkpoint folder in bfloat16, as Hugging Face publishes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

from lopa_ray.model.wheels.gguf_tokenizer import save_tokenizer

_SHAPE = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""Key of config.json → GGUF's."""

_TOKENS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}

_MODULES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_HEADS = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}

WEIGHTS = "model.safetensors"

Array: TypeAlias = npt.NDArray[np.float32]


def convert_gguf(
    file: Path, folder: Path, mask_token_id: int, on_progress: Callable[[int, int], None]
) -> None:
    """Write weights, configuration and tokenizer of `file` to `folder`. `on_progress`: see `WheelModel.make`."""
    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    names = [_published(stored.name) for stored in reader.tensors]
    config = _config(fields) | {"tie_word_embeddings": "lm_head.weight" not in names}
    # GGUF has the dimensions in reverse.
    shapes = {name: stored.shape[::-1].tolist() for name, stored in zip(names, reader.tensors, strict=True)}
    with (folder / WEIGHTS).open("wb") as weights:
        weights.write(_header(shapes))
        for done, (name, stored) in enumerate(zip(names, reader.tensors, strict=True), 1):
            weight = dequantize(stored.data, stored.tensor_type).reshape(shapes[name])
            for module, heads in _HEADS.items():
                if module in name:
                    weight = _halves_of_heads(weight, config[heads])
            weights.write(_bfloat16(weight).tobytes())
            on_progress(done, len(names))
    tokens = {key: fields[f"tokenizer.ggml.{name}"] for key, name in _TOKENS.items()}
    _write(folder / "config.json", config | tokens | {"mask_token_id": mask_token_id})
    _write(folder / "generation_config.json", tokens)
    save_tokenizer(fields, folder)


def _header(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The beginning of a safetensors file of bfloat16 tensors. Torch would write one, and takes seconds to import."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    stop = 0
    for name, shape in shapes.items():
        start, stop = stop, stop + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bfloat16(weight: Array) -> npt.NDArray[np.uint16]:
    """The bits of the nearest numbers in bfloat16, of two that are equally near the even one."""
    bits = weight.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    shape = {key: fields[f"llama.{name}"] for key, name in _SHAPE.items()}
    # GGUF has floats in 32 bits: 1e-5 is 9.999999747e-6 there.
    shape = {
        key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in shape.items()
    }
    named = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    named["dlm_paradigm"] = "autoregressive"
    return named | shape | {"torch_dtype": "bfloat16"}


def _published(name: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight"""
    *block, module, attribute = name.split(".")
    layer = f"model.layers.{block[1]}." if block else ""
    return f"{layer}{_MODULES[module]}.{attribute}"


def _halves_of_heads(weight: Array, heads: int) -> Array:
    """Rows [O, I] of `heads` heads, from GGUF's order, in which the rows that are rotated together are neighbours, to
    that of Hugging Face, where one is in each half of the head."""
    outputs, inputs = weight.shape
    pairs = weight.reshape(heads, outputs // heads // 2, 2, inputs)
    return pairs.swapaxes(1, 2).reshape(outputs, inputs)


def _write(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
