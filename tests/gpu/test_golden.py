"""Recorded decodes of the published code in fp32 on CUDA."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

pytest.importorskip("pydantic")

from lopa_lab.conformance.cases import read_cases
from lopa_lab.conformance.replay import EngineFactory, replay
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.paths import GOLDEN
from support.thread_tensor_parallel import engine_in_two_shards

FILES = {
    "lopa_cases": 85,
    "lora_cases": 6,
    "d2f_llada_cases": 12,
    "dream_generate_cases": 31,
    "llada_generate_cases": 29,
    "forward_cases": 18,
    "sdar/sdar_forward_cases": 10,
    "sdar/sdar_generate_cases": 48,
    "sdar/sdar_entropy_bounded_cases": 3,
    "sdar_moe/sdar_moe_forward_cases": 9,
    "sdar_moe/sdar_moe_generate_cases": 21,
    "llada2/llada2_forward_cases": 10,
    "llada2/llada2_generate_cases": 34,
    "llada2/llada21_generate_cases": 28,
    "fast_dllm_v2/fast_dllm_v2_generate_cases": 48,
    "mbd/mbd_llada2_cases": 34,
    "mbd/mbd_llada21_cases": 30,
    "mbd/mbd_sdar_cases": 34,
    "dmax/dmax_generate_cases": 33,
    "nemotron/nemotron_forward_cases": 11,
    "nemotron/nemotron_generate_cases": 45,
    "nemotron/nemotron_spec_cases": 16,
}
"""Cases that pass on the CPU; `tests/unit/lab/conformance/test_golden.py` says why the others are not supported."""


def engine_with(attention: str, config: Config, cuda_graphs: str = "none") -> LocalEngine:
    """An engine whose attention and graphs are not left to chance."""
    return LocalEngine.from_config(
        config.replace(model=config.model.replace(attention=attention, cuda_graphs=cuda_graphs))
    )


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "make_engine",
    [
        pytest.param(partial(engine_with, "triton"), id="triton"),
        pytest.param(partial(engine_with, "triton", cuda_graphs="auto"), id="triton in graphs"),
        pytest.param(partial(engine_with, "sdpa"), id="sdpa"),
        pytest.param(engine_in_two_shards, id="in two shards that are threads"),
    ],
)
def test_recorded_cases_replay_in_fp32(name: str, make_engine: EngineFactory) -> None:
    cases = read_cases(GOLDEN / f"{name}.jsonl")
    verdicts = list(replay(cases, GOLDEN / "models", make_engine, device="cuda"))
    wrong = [(v.id, v.reason, v.differences[:1]) for v in verdicts if v.status in ("differs", "error")]
    assert wrong == []
    assert Counter(verdict.status for verdict in verdicts)["passed"] == FILES[name]
