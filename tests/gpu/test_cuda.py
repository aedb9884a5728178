"""What only a GPU can show. Without one these tests are skipped, and reported as skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from groups import MODEL, PROMPTS, SETTINGS

from lopa_ray.conformance import read_cases, replay
from lopa_ray.local import LocalEngine

pytestmark = pytest.mark.gpu

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["lopa_cases", "lora_cases"])
def test_recorded_cases_replay_in_fp32(name: str) -> None:
    cases = read_cases(GOLDEN / f"{name}.jsonl")
    for verdict in replay(cases, GOLDEN / "models", LocalEngine.from_config, device="cuda"):
        assert verdict.status == "passed", verdict.as_dict()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SETTINGS)
def test_half_precision_decodes_every_position_the_same_twice(dtype: str, name: str) -> None:
    engine = LocalEngine.from_pretrained(MODEL, device="cuda", dtype=dtype, max_model_len=256)
    mask = engine.vocabulary.mask_token_id
    results = engine.generate(PROMPTS, SETTINGS[name])
    assert all(mask not in result.token_ids for result in results)
    assert [r.token_ids for r in engine.generate(PROMPTS, SETTINGS[name])] == [r.token_ids for r in results]
