"""`lopa bench english` on a tiny model that is trained for nothing: all ways give the text of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lopa_lab.bench.english import SEED, is_sound, measure_english
from lopa_lab.english_prompts import held_out_prompts
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.engine.config import Config
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer
from support.draft_heads import with_random_head

LENGTH = 12


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """An autoregressive model that ends its answer to the first prompt with the third token."""
    torch.manual_seed(0)
    plain = tmp_path / "plain"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=1792, **sizes, initializer_range=0.3, eos_token_id=0, pad_token_id=0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(plain)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, plain)
    tokenizer = require_tokenizer(Tokenizer.from_pretrained(plain))
    (first,) = held_out_prompts(SEED, 1)
    prompt = torch.tensor([tokenizer.apply_chat_template([{"role": "user", "content": first}])])
    end = int(model.generate(prompt, max_new_tokens=LENGTH, do_sample=False)[0, prompt.shape[1] + 2])
    values = json.loads((plain / "config.json").read_text())
    marks = {"dlm_paradigm": "autoregressive", "mask_token_id": 1, "eos_token_id": end, "pad_token_id": end}
    (plain / "config.json").write_text(json.dumps(values | marks))
    (plain / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "pad_token_id": end}))
    return with_random_head(plain, tmp_path / "model")


@pytest.mark.medium
def test_all_ways_give_the_text_of_transformers(checkpoint: Path) -> None:
    decode = {"decoder": "self_speculation", "block_size": 4, "max_new_tokens": LENGTH}
    model = {"path": str(checkpoint), "max_num_seqs": 1, "max_model_len": 128, "dtype": "float32"}
    config = Config.parse({"model": model, "decode": decode, "group": {"num_workers": 1}})
    rows = measure_english(config, 3, (1, "auto"), LENGTH).rows
    assert [row["way"] for row in rows] == [
        "autoregressive",
        "transformers' generate",
        "self-speculation, 1 branches",
        "self-speculation, auto branches",
    ]
    assert all(row["same text %"] == 100 for row in rows)
    assert len({round(row["nats per token"], 4) for row in rows}) == 1
    assert rows[1]["TPF"] == 1 and all(row["TPF"] >= 1 for row in rows)


@pytest.mark.parametrize(
    ("text", "ended", "sound"),
    [
        ("The sea is salty.", True, True),
        ("The sea is salty.", False, False),
        ("The the sea is salty.", True, False),
        ("it is so far and it is so far and it is so far", True, False),
    ],
)
def test_a_sound_answer_ends_and_does_not_repeat_itself(text: str, ended: bool, sound: bool) -> None:
    assert is_sound(text, ended) is sound
