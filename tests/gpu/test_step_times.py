"""How long a step takes. Nothing is demanded of it; the record of a run has the numbers."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic")

from lopa_ray.config.decoder_settings import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.device import DEVICES
from support.paths import GOLDEN

PROMPT_LENGTHS = range(500, 521, 5)

DREAM_7B = {
    "architectures": ["DreamModel"],
    "model_type": "Dream",
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "mask_token_id": 151666,
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}

SDAR_4B = GOLDEN / "published" / "sdar-4b-chat"


@pytest.fixture(scope="module", params=DEVICES["cuda"].attention_backends)
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    """SDAR-4B's shape with random weights."""
    options = {"load_format": "dummy", "dtype": "bfloat16", "max_num_seqs": 1, "max_model_len": 640}
    if request.param == "flash_attn":
        pytest.importorskip("flash_attn", reason="the package flash-attn is not installed")
    yield LocalEngine.from_pretrained(SDAR_4B, device="cuda", attention=request.param, **options)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("branches", [1, 4, 8])
def test_a_step_of_a_model_of_real_size(
    engine: LocalEngine, branches: int, record_property: Callable[[str, object], None]
) -> None:
    settings = LopaSettings(max_new_tokens=64, num_branches=branches, ignore_eos=True)
    engine.generate(list(range(512)), settings)
    milliseconds: list[float] = []
    for length in PROMPT_LENGTHS:  # shapes of a step are hardly ever those of the step before
        began = time.perf_counter()
        for _ in engine.events([engine.create_session(list(range(length)), settings)]):
            milliseconds.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
    what = (
        f"SDAR-4B's shape, bf16, prompts of 500 to 520, {engine.config.model.attention}, {branches} branches"
    )
    record_property(f"{what}: mean, ms", statistics.mean(milliseconds))
    record_property(f"{what}: worst, ms", max(milliseconds))


def test_peak_memory_of_a_large_batch(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Dream-7B's shape with random weights: 8 requests of 16 branches with a nucleus."""
    (tmp_path / "config.json").write_text(json.dumps(DREAM_7B))
    engine = LocalEngine.from_pretrained(
        tmp_path, device="cuda", load_format="dummy", dtype="bfloat16", max_num_seqs=8, max_model_len=640
    )
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    settings = LopaSettings(max_new_tokens=32, num_branches=16, temperature=0.5, top_p=0.9, ignore_eos=True)
    results = engine.generate([list(range(at, at + 512)) for at in range(8)], settings)
    assert [result.tokens for result in results] == [32] * 8
    above = torch.cuda.max_memory_allocated() - held
    record_property(
        "Dream-7B's shape, 8 x 16 branches, top-p: peak above weights and cache, GiB", above / 2**30
    )
    assert above < 6 * 2**30
