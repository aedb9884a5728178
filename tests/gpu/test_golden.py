"""Recorded decodes of the published code in fp32 on CUDA."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("pydantic")

from lopa_lab.conformance.cases import read_cases
from lopa_lab.conformance.replay import EngineFactory, replay
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.paths import GOLDEN
from support.recorded_cases import RECORDED, REFUSED
from support.thread_tensor_parallel import engine_in_two_shards

FILES = [name for name in RECORDED if not name.startswith("diffusion_gemma/")]
"""Without the model that transformers alone runs, which has neither graphs nor shards."""


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
    assert {verdict.id for verdict in verdicts if verdict.status != "passed"} <= REFUSED.keys()
