"""Block routing against a reference that follows its description, a block and an expert at a time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.experts_config import ExpertsConfig
from lopa_ray.model.router import Router, blocks_of
from support.checkpoints import edit_json
from support.paths import MODELS
from support.thread_tensor_parallel import engine_in_two_shards
from support.transformers_checkpoints import runner_of

CAPACITY, BLOCK = 6, 8
EXPERTS = ExpertsConfig(
    "sigmoid",
    count=16,
    per_token=4,
    width=16,
    groups=4,
    kept_groups=2,
    scale=2.5,
    capacity=CAPACITY,
    block_size=BLOCK,
)


def chosen_by_description(
    scores: torch.Tensor, bias: torch.Tensor, blocks: list[list[int]]
) -> list[dict[int, float]]:
    """Expert → weight of each row: the rows of a block choose among the experts with the highest scores in it."""
    of_rows: list[dict[int, float]] = [{} for _ in scores]
    for rows in blocks:
        highest = {
            expert: max(float(scores[row, expert] + bias[expert]) for row in rows) for expert in range(16)
        }
        kept = sorted(highest, key=lambda expert: -highest[expert])[:CAPACITY]
        for row in rows:
            best = sorted(kept, key=lambda expert: -float(scores[row, expert] + bias[expert]))[:4]
            total = sum(float(scores[row, expert]) for expert in best)
            of_rows[row] = {expert: float(scores[row, expert]) / total * 2.5 for expert in best}
    return of_rows


def test_rows_choose_among_the_experts_of_their_block() -> None:
    generator = torch.Generator().manual_seed(0)
    router = Router(12, EXPERTS)
    torch.nn.init.normal_(router.weight, generator=generator)
    torch.nn.init.normal_(router.expert_bias, std=0.3, generator=generator)
    rows = torch.randn(38, 12, generator=generator)
    # Two branches of one request, another request, and the padding of a bucket.
    positions = [*range(8, 21), *range(8, 21), *range(10), 0, 0]
    ends = [0, 8, 13, 21, 26, 34, 36, 37, 38]
    blocks = [[*range(start, stop)] for start, stop in pairwise(ends)]
    found = blocks_of(torch.tensor(positions), BLOCK)
    assert found.tolist() == [at for at, block in enumerate(blocks) for _ in block]
    chosen, weights = router(rows, found)
    scores = (rows @ router.weight.T).sigmoid()
    assert router.expert_bias is not None
    wanted = chosen_by_description(scores.detach(), router.expert_bias.detach(), blocks)
    for row, expected in enumerate(wanted):
        got = dict(zip(chosen[row].tolist(), weights[row].tolist(), strict=True))
        assert got == pytest.approx(expected, abs=1e-5)
    assert any(
        set(alone) != set(of_row)
        for alone, of_row in zip(router(rows, None)[0].tolist(), wanted, strict=True)
    )


def routed_checkpoint(folder: Path) -> Path:
    """The recorded checkpoint, with block routing."""
    for file in (MODELS / "llada22-tiny-3l").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    edit_json(folder / "config.json", expert_capacity=CAPACITY, block_size=BLOCK)
    return folder


def test_tokens_do_not_depend_on_what_is_decoded_along(tmp_path: Path) -> None:
    model = {
        "path": str(routed_checkpoint(tmp_path)),
        "dtype": "float32",
        "max_num_seqs": 3,
        "max_model_len": 64,
    }
    decode = {
        "decoder": "indel",
        "max_new_tokens": 20,
        "block_size": BLOCK,
        "num_branches": 3,
        "max_post_steps": 4,
    }
    prompts = [[7, 21, 33], [*range(40, 57)], [99, 98]]
    with LocalEngine.from_config(Config.parse({"model": model, "decode": decode})) as engine:
        together = [result.token_ids for result in engine.generate(prompts)]
        alone = [engine.generate([prompt])[0].token_ids for prompt in prompts]
        with pytest.raises(SettingsError, match="whole blocks of 8 positions"):
            engine.generate([[1]], block_size=4)
        with pytest.raises(SettingsError, match="whole blocks of 8 positions"):
            engine.generate([[1]], decoder="vanilla")
    assert together == alone
    with engine_in_two_shards(Config.parse({"model": model, "decode": decode})) as engine:
        assert [result.token_ids for result in engine.generate(prompts)] == together
    # Without block routing the same weights decode otherwise.
    edit_json(tmp_path / "config.json", expert_capacity=0)
    with LocalEngine.from_config(Config.parse({"model": model, "decode": decode})) as engine:
        assert [result.token_ids for result in engine.generate(prompts)] != together


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    folder = routed_checkpoint(tmp_path)
    assert load_config(folder).routing_block == BLOCK
    with pytest.raises(CheckpointError, match="whole blocks of positions"):
        runner_of(folder, implementation="transformers")
    edit_json(folder / "config.json", expert_capacity=3)
    with pytest.raises(CheckpointError, match="4 of 3 experts per block"):
        load_config(folder)
