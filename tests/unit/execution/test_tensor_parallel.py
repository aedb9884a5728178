"""Models in shards: what each holds, and that together they compute what one process does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lopa_ray.config.config import Config
from lopa_ray.config.decoder_settings import BlockDiffusionSettings, LopaSettings
from lopa_ray.conformance import Case, Verdict, read_cases, replay
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.tensor_parallel import shard_parameter, shard_range
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.weights import random_model
from support.paths import GOLDEN
from support.thread_tensor_parallel import (
    ShardedRunner,
    ShardThreads,
    ThreadTensorParallelGroup,
    engine_in_two_shards,
    shard_model,
)
from support.tiny_model import load_tiny_model

FILES = {
    "lopa_cases": 3,
    "lora_cases": 2,
    "d2f_llada_cases": 2,
    "dream_generate_cases": 3,
    "llada_generate_cases": 3,
    "forward_cases": 6,
    "sdar/sdar_forward_cases": 5,
    "sdar/sdar_generate_cases": 4,
    "sdar_moe/sdar_moe_forward_cases": 3,
    "sdar_moe/sdar_moe_generate_cases": 3,
    "llada2/llada2_forward_cases": 3,
}
"""Recorded cases of each file that are repeated here, spread over it. On workers all of them are (long tests)."""

NAMES = ("dream-tiny-2l", "llada-tiny-3l", "sdar-tiny-3l", "sdar-moe-tiny-3l", "llada2-tiny-3l")


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize("name", FILES)
def test_recorded_cases_in_two_shards(name: str) -> None:
    torch.set_num_threads(1)
    cases = [case for case in read_cases(GOLDEN / f"{name}.jsonl") if isinstance(case, Case)]
    cases = cases[:: len(cases) // FILES[name]]
    assert len(cases) >= FILES[name]
    for verdict in replay(cases, GOLDEN / "models", engine_in_two_shards):
        assert isinstance(verdict, Verdict)
        assert verdict.status == "passed" or "mask token" in verdict.reason, verdict.as_dict()


def odd_model(**changes: object) -> Transformer:
    """A random model that three shards can have, with a vocabulary that they cannot have equal parts of."""
    config = replace(
        load_tiny_model().config,
        hidden_size=96,
        num_heads=6,
        num_kv_heads=3,
        head_dim=16,
        intermediate_size=198,
        vocab_size=1000,
        mask_token_id=999,
        eos_token_id=998,
        pad_token_id=None,
        bos_token_id=None,
        **changes,
    )
    model = random_model(config, 0, torch.float32, "cpu")
    for name, parameter in model.named_parameters():
        if name.endswith("scale") or (parameter.dim() == 2 and parameter.is_floating_point()):
            parameter.mul_(4)  # sharper, so that probabilities spread
    return model


def logits_of(whole: Transformer, size: int) -> tuple[Tensor, Tensor]:
    """Of the model as a whole, and in shards: of a span that is cached, and one behind it."""
    ids = torch.randint(0, 100, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    runners = (
        BranchRunner(whole, max_num_seqs=1, max_model_len=64),
        ShardedRunner(whole, size, max_num_seqs=1, max_model_len=64),
    )
    found = []
    for runner in runners:
        first = runner.logits(ids[:40], to_stage=(range(40),))
        found.append(torch.cat((first, runner.logits(ids[40:], start=40))))
    return found[0], found[1]


@pytest.mark.parametrize("tied", [False, True])
def test_parts_that_are_not_equal(tied: bool) -> None:
    whole, shards = logits_of(odd_model(tie_word_embeddings=tied), 3)
    assert whole.shape == shards.shape == (60, 1000)
    torch.testing.assert_close(shards, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_int8_has_the_bits_of_one_process(name: str) -> None:
    """Scales are of whole rows, and sums of integers are exact."""
    whole, shards = logits_of(load_tiny_model(name, "w8a8"), 2)
    assert torch.equal(shards, whole)
    whole, shards = logits_of(load_tiny_model(name, "w8"), 2)
    torch.testing.assert_close(shards, whole, atol=1e-4, rtol=1e-4)


def test_graphs_end_where_shards_talk_to_each_other() -> None:
    torch._dynamo.reset()
    plain, compiled = (
        ShardedRunner(load_tiny_model("sdar-tiny-3l"), 2, max_num_seqs=1, max_model_len=64) for _ in range(2)
    )
    for runner in compiled.runners:
        runner.model.compile_layers("eager")
    for ids in (list(range(48)), list(range(16))):
        assert torch.equal(compiled.logits(ids), plain.logits(ids))


@pytest.mark.usefixtures("either_attention")
def test_bits_do_not_depend_on_the_batch() -> None:
    config = Config.parse({"model": {"max_model_len": 96, "max_num_seqs": 4}})
    runner = ShardedRunner(odd_model(), 3, max_num_seqs=4, max_model_len=96)
    engine = LocalEngine(config, runner, None)
    prompts = [[5, 6, 7], list(range(40)), [8] * 17, [1]]
    settings = LopaSettings(max_new_tokens=30, block_size=8, num_branches=3, confidence_threshold=0.2)
    together = engine.generate(prompts, settings, trace=True)
    for prompt, found in zip(prompts, together, strict=True):
        alone = engine.generate(prompt, settings, trace=True)
        assert alone.trace == found.trace
        assert alone.token_ids == found.token_ids


@pytest.mark.parametrize("quantization", ["none", "w8a8"])
@pytest.mark.parametrize("size", [2, 3])
def test_shards_share_all_but_what_is_replicated(size: int, quantization: str) -> None:
    whole = odd_model(quantization=quantization, qkv_bias=True, qk_norm=True)
    parts = [shard_model(whole, each) for each in ShardThreads(size).tp_groups] if size == 3 else []
    for name, parameter in whole.named_parameters():
        pieces = [shard_parameter(name, parameter.detach(), whole.config, rank, size) for rank in range(size)]
        for rank, model in enumerate(parts):
            assert torch.equal(model.get_parameter(name), pieces[rank])
        module, kind = name.split(".")[-2:]
        if module in ("qkv", "gate_up", "lm_head") or (module in ("o", "down") and kind == "weight"):
            assert sum(piece.numel() for piece in pieces) == parameter.numel()
        else:
            assert all(torch.equal(piece, parameter) for piece in pieces)
    heads = shard_parameter("layers.0.qkv.weight", torch.arange(192)[:, None], whole.config, 1, 3)[
        :, 0
    ].tolist()
    assert heads == [*range(32, 64), *range(112, 128), *range(160, 176)]


def test_each_shard_stores_its_part_of_a_prefix() -> None:
    model = {
        "path": str(GOLDEN / "models" / "sdar-tiny-3l"),
        "max_model_len": 96,
        "prefix_cache_positions": 100,
    }
    engine = engine_in_two_shards(Config.parse({"model": model}))
    wanted = LocalEngine.from_config(Config.parse({"model": {**model, "prefix_cache_positions": 0}}))
    for prompt in (list(range(30)), [*range(24), 90, 91, 92]):
        settings = BlockDiffusionSettings(max_new_tokens=24, stop_at_eos=False)
        assert engine.generate(prompt, settings).token_ids == wanted.generate(prompt, settings).token_ids
    assert engine.prefix_index.hit_requests == 1


def test_a_slot_holds_the_heads_of_its_shard() -> None:
    whole = load_tiny_model("llada-tiny-3l")
    (shard, _) = ShardedRunner(whole, 2, max_num_seqs=1, max_model_len=32).runners
    alone = BranchRunner(whole, max_num_seqs=1, max_model_len=32)
    assert shard.position_bytes * 2 == alone.position_bytes


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"got 3 for a model with 4 heads, 2 KV heads.*\(1, 2\)"):
        shard_model(load_tiny_model(), ThreadTensorParallelGroup(0, ShardThreads(3)._buffer))
    assert load_tiny_model().config.shard(1) == load_tiny_model().config


def test_parts_cover_everything_once() -> None:
    for total in range(1, 20):
        for size in range(1, total + 1):
            parts = [shard_range(total, rank, size) for rank in range(size)]
            assert [each for one in parts for each in one] == list(range(total))
            assert len(parts[0]) - len(parts[-1]) <= 1
