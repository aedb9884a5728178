"""How long a step takes. Nothing is demanded of it; the record of a run has the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

pytest.importorskip("pydantic")

from lopa_ray.config.decoder_settings import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.device import DEVICES
from support.paths import GOLDEN

SDAR_4B = GOLDEN / "published" / "sdar-4b-chat"


@pytest.fixture(scope="module", params=DEVICES["cuda"].attention_kernels)
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
    prompt = list(range(512))
    engine.generate(prompt, settings)
    began = time.perf_counter()
    result = engine.generate(prompt, settings)
    milliseconds = 1000 * (time.perf_counter() - began) / result.steps
    assert result.tokens == 64
    kernel = engine.config.model.attention
    record_property(f"SDAR-4B's shape, bf16, prompt of 512, {kernel}, {branches} branches", milliseconds)
