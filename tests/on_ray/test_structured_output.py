"""Structured output on workers: the constraint lives in the session, so workers do not need it."""

from __future__ import annotations

import pytest

from actors.engine import RayEngine
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.engine.local import LocalEngine
from support.tiny_model import tiny_config

PROMPTS = ["Tom has 3 boxes with 4 pens each. How many pens does he have?", "Mia has 7 books."]
REGEX = r"[A-Z][a-z]+ has \d\*\d=\d\d (pens|books)\.\n#### \d\d?"
SETTINGS = [
    LopaSettings(max_new_tokens=48, num_branches=5, guided_regex=REGEX),
    LopaSettings(max_new_tokens=48, num_branches=3, window_attention="block_causal", guided_regex=REGEX),
    LopaSettings(
        max_new_tokens=48,
        num_branches=3,
        block_size=8,
        window_attention="tiled",
        guided_regex=REGEX,
    ),
    LopaSettings(max_new_tokens=48, temperature=0.9, seed=5, guided_json={"type": "object"}),
    D2FSettings(max_new_tokens=40, block_size=8, guided_choice=["12 pens", "7 books"]),
    FastDllmSettings(max_new_tokens=48, block_size=16, guided_regex=REGEX),
    LopaSettings(max_new_tokens=48),
]


@pytest.mark.long
def test_two_workers_decode_what_one_process_does() -> None:
    demo = tiny_config(model={"path": "demo"}, group={"num_workers": 2})
    local = LocalEngine.from_config(demo)
    pairs = [(prompt, settings) for prompt in PROMPTS for settings in SETTINGS]
    with RayEngine.from_config(demo) as engine:
        results = dict(engine.run([engine.create_session(*pair) for pair in pairs], trace=True))
    for index, (prompt, settings) in enumerate(pairs):
        alone, result = local.generate(prompt, settings, trace=True), results[index]
        assert not isinstance(result, Exception)
        assert (result.text, result.steps, result.trace) == (alone.text, alone.steps, alone.trace)
