"""How long a step takes. Nothing is demanded of it; the record of a run has the numbers."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic")

from cluster.bench.step_plans import plan_of, step_of
from lopa_ray.config.decoder_settings import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.runner import BranchRunner
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
    options = {"load_format": "dummy", "dtype": "bfloat16", "max_num_seqs": 1, "max_model_len": 768}
    if request.param == "flash_attn" and find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not installed")
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


@pytest.fixture(scope="module")
def dream_7b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BranchRunner]:
    """Dream-7B's shape with random weights in bf16, and the attention that auto takes."""
    folder = tmp_path_factory.mktemp("dream-7b")
    (folder / "config.json").write_text(json.dumps(DREAM_7B))
    options = {"load_format": "dummy", "dtype": "bfloat16", "max_num_seqs": 8, "max_model_len": 1024}
    yield LocalEngine.from_pretrained(folder, device="cuda", **options).runner
    torch.cuda.empty_cache()


def seconds(call: Callable[[], object], times: int) -> float:
    """Median of a call, waited for."""
    spent = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


@pytest.fixture(scope="module")
def rates() -> tuple[float, float]:
    """Bytes and operations per second of this device, as copies and products of bf16 show them."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for warm in (3, 10):
        copying = seconds(lambda: target.copy_(source), warm)
        product = seconds(lambda: matrix @ matrix, warm)
    return 2 * source.numel() / copying, 2 * 8192**3 / product


@pytest.mark.parametrize("rows", [32, 64, 96])
@pytest.mark.parametrize(("requests", "branches"), [(1, 1), (1, 4), (1, 8), (1, 15), (8, 8)])
def test_a_step_of_dream_7b_beside_its_floor(
    dream_7b: BranchRunner,
    rates: tuple[float, float],
    requests: int,
    branches: int,
    rows: int,
    record_property: Callable[[str, object], None],
) -> None:
    """The floor: the weights and the prefix read once, or the products of all rows, whichever takes longer."""
    mask = dream_7b.vocabulary.mask_token_id
    plan = step_of(dream_7b, [plan_of(mask, branches, rows) for _ in range(requests)])
    for times in (3, 20):
        spent = seconds(lambda: dream_7b.execute(plan), times)
    weights = [each for each in dream_7b.model.parameters() if each is not dream_7b.model.embed.weight]
    parameters = sum(each.numel() for each in weights)
    read = 2 * parameters + requests * 512 * dream_7b.position_bytes
    floor = max(read / rates[0], 2 * parameters * requests * branches * rows / rates[1])
    what = f"Dream-7B's shape, bf16, prefix 512, {requests} x {branches} branches, windows of {rows}"
    record_property(f"{what}: step, ms", 1000 * spent)
    record_property(f"{what}: floor, ms", 1000 * floor)


def test_memory_does_not_grow_over_a_thousand_steps(
    dream_7b: BranchRunner, record_property: Callable[[str, object], None]
) -> None:
    """Steps of all sizes, that stage and commit."""
    mask = dream_7b.vocabulary.mask_token_id
    held = []
    for number in range(1001):
        dream_7b.cache.reset(0, None)
        rows, branches = 16 + 8 * (number % 11), 1 + number % 15
        steps = [
            plan_of(mask, branches, rows, step=2 * number + 1, staged=8),
            plan_of(mask, branches, rows, start=520, step=2 * number + 2, committed=8),
        ]
        dream_7b.execute(step_of(dream_7b, [steps[0]]))
        dream_7b.execute(step_of(dream_7b, [steps[1]]))
        if number % 500 == 0:
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_allocated())
    record_property("Dream-7B's shape, 2,000 steps: memory held at the end, GiB", held[-1] / 2**30)
    assert held[2] - held[1] < 2**20
