"""A tiny checkpoint with random weights and a chat template that knows tools and reasoning, as SDAR publishes it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, pre_tokenizers, trainers

from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from support.paths import DATA, MODELS
from support.tiny_model import random_model

SPECIAL = ("<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SDAR_TEMPLATE = (DATA / "sdar_chat_template.jinja").read_text()
"""The template of JetLM/SDAR-4B-Chat, which has it from Qwen3."""
THINKING_TEMPLATE = SDAR_TEMPLATE + "{%- if enable_thinking is not defined %}{{- '<think>\n' }}{%- endif %}"
"""Opens the reasoning in the prompt."""


GEMMA_MARKUP = ("<|think|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
GEMMA_TEMPLATE = (
    "{% if enable_thinking %}<|turn>system\n<|think|><turn|>\n{% endif %}"
    "{% for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{}<tool|>{% endfor %}"
    "{% for message in messages %}<|turn>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{}<tool_call|>{% endfor %}"
    "<turn|>\n{% endfor %}<|turn>model\n{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}"
)
"""With the tags of Gemma 4's template; arguments are left out."""


def write_tokenizer(
    folder: Path,
    *,
    template: str = SDAR_TEMPLATE,
    markup: Sequence[str] = MARKUP,
    special_markup: bool = False,
) -> dict[str, int]:
    """A byte-level tokenizer of few words; returns the id of each added token. `special_markup`: those of `markup` are
    special tokens, and else added ones."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(
        ['{"name": "add", "arguments": {"a": 1, "b": 2}} the sum is three'] * 9, trainer
    )
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, special=special_markup, normalized=False) for text in markup])
    backend.save(str(folder / "tokenizer.json"))
    names = {"eos_token": SPECIAL[0], "mask_token": SPECIAL[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": template}))
    ids = {text: backend.token_to_id(text) for text in (*SPECIAL, *markup)}
    return {text: token for text, token in ids.items() if token is not None}


def write_tool_checkpoint(folder: Path, **options: Any) -> dict[str, int]:
    """The same, with the options of `write_tokenizer`, and a model of random weights, which writes all bytes alike."""
    ids = write_tokenizer(folder, **options)
    config = dataclasses.replace(
        load_config(MODELS / "sdar-tiny-3l"),
        vocab_size=max(ids.values()) + 1,
        num_layers=1,
        mask_token_id=ids["<|mask|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=None,
        bos_token_id=None,
        stop_token_ids=(),
    )
    save_model(random_model(config, 1, torch.float32, "cpu"), folder, dtype=torch.float32)
    return ids
