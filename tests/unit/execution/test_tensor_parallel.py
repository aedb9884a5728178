"""Models in shards: what each holds, and that together they compute what one process does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lopa_lab.conformance.cases import Case, Verdict, read_cases
from lopa_lab.conformance.replay import replay
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.checkpoint.tensor_files import TensorFiles
from lopa_ray.model.config import Quantization
from lopa_ray.model.experts_config import ExpertParallel, ExpertsConfig
from lopa_ray.model.native_implementation import NativeImplementation
from lopa_ray.model.tensor_parallel import shard_parameter, shard_range
from lopa_ray.model.transformer import Transformer
from support.paths import GOLDEN
from support.thread_tensor_parallel import (
    ShardedRunner,
    ShardThreads,
    engine_in_two_shards,
    shard_model,
)
from support.tiny_model import load_tiny_model, odd_model

pytestmark = pytest.mark.medium

FILES = {
    "lopa_cases": 2,
    "sdar/sdar_generate_cases": 2,
    "llada2/llada2_generate_cases": 2,
    "llada22/llada22_cases": 2,
    "nemotron/nemotron_spec_cases": 2,
    "forward_cases": 2,
}
"""Recorded cases of each file that are repeated here, spread over it."""


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize(
    ("name", "expert_parallel"),
    [*((name, "auto") for name in FILES), ("llada2/llada2_generate_cases", False)],
)
def test_recorded_cases_in_two_shards(name: str, expert_parallel: ExpertParallel) -> None:
    torch.set_num_threads(1)
    cases = [case for case in read_cases(GOLDEN / f"{name}.jsonl") if isinstance(case, Case)]
    cases = cases[:: len(cases) // FILES[name]]
    assert len(cases) >= FILES[name]
    make_engine = partial(engine_in_two_shards, expert_parallel=expert_parallel)
    for verdict in replay(cases, GOLDEN / "models", make_engine):
        assert isinstance(verdict, Verdict)
        assert verdict.status == "passed" or "mask token" in verdict.reason, verdict.as_dict()


def odd_experts(quantization: Quantization = "none", expert_parallel: ExpertParallel = "auto") -> Transformer:
    """The same with 16 experts of width 27 in 4 groups, and a shared one."""
    experts = replace(load_tiny_model("llada2-tiny-3l").config.experts, width=27, parallel=expert_parallel)  # type: ignore[type-var]
    return odd_model(
        family="llada2", qkv_bias=False, qk_norm=True, experts=experts, quantization=quantization
    )


def logits_of(whole: Transformer, size: int) -> tuple[Tensor, Tensor]:
    """Logits of the whole model and of its shards, for a span that is cached and one behind it."""
    ids = torch.randint(0, 100, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    runners = (
        BranchRunner(whole, max_num_seqs=1, max_model_len=64),
        ShardedRunner(whole, size, max_num_seqs=1, max_model_len=64),
    )
    logits = []
    for runner in runners:
        first = runner.logits(ids[:40], to_stage=(range(40),))
        logits.append(torch.cat((first, runner.logits(ids[40:], start=40))))
    return logits[0], logits[1]


@pytest.mark.parametrize("tied", [False, True])
def test_parts_that_are_not_equal(tied: bool) -> None:
    whole, shards = logits_of(odd_model(tie_word_embeddings=tied), 3)
    assert whole.shape == shards.shape == (60, 1000)
    torch.testing.assert_close(shards, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("expert_parallel", [True, False])
@pytest.mark.parametrize("quantization", ["none", "w8", "w8a8"])
def test_experts_in_three_shards(quantization: Quantization, expert_parallel: bool) -> None:
    """16 whole ones cannot be shared equally."""
    whole, shards = logits_of(odd_experts(quantization, expert_parallel), 3)
    torch.testing.assert_close(shards, whole, atol=1e-4, rtol=1e-4)
    assert torch.equal(shards, whole) == (quantization == "w8a8")


@pytest.mark.parametrize(
    "changes",
    [
        {"ranking": "neg_entropy"},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 7, "ranking": "margin"},
        {"repetition_penalty": 1.5, "logit_bias": {998: 2.5}, "min_tokens": 9, "top_logprobs": 3},
    ],
)
def test_shards_score_as_one_process(changes: dict[str, Any]) -> None:
    """The logits of an int8 model have the same bits, so scores have them, too. No host waits (`HostReads`)."""
    whole = odd_model(quantization="w8a8")
    settings = LopaSettings(
        max_new_tokens=20, block_size=8, num_branches=3, confidence_threshold=0.2, **changes
    )
    size = {"max_num_seqs": 1, "max_model_len": 64}
    results = [
        LocalEngine(Config.parse({"model": size}), runner, None).generate([5, 6, 7], settings, trace=True)
        for runner in (BranchRunner(whole, **size), ShardedRunner(whole, 3, **size))
    ]
    assert results[0].trace == results[1].trace
    assert results[0].token_ids == results[1].token_ids


@pytest.mark.parametrize(
    ("width", "shards", "parallel", "are_whole"),
    [
        (512, 8, "auto", False),  # LLaDA2.0-mini
        (512, 16, "auto", True),  # 32 columns
        (768, 5, "auto", True),  # not equal
        (768, 17, "auto", False),  # more shards than experts
        (512, 16, False, False),
        (768, 2, True, True),
    ],
)
def test_auto_goes_by_sizes(width: int, shards: int, parallel: ExpertParallel, are_whole: bool) -> None:
    shape = ExpertsConfig("softmax", 16, 2, width, parallel=parallel)
    assert shape.are_whole(shards) == are_whole


def test_a_shard_reads_its_own_experts_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = odd_experts("none")
    save_model(whole, tmp_path, dtype=torch.float32)
    config = replace(load_config(tmp_path), quantization="w8")
    read: list[str] = []
    read_tensors = TensorFiles.read_tensors
    monkeypatch.setattr(
        TensorFiles,
        "read_tensors",
        lambda self, names, *dtypes: read_tensors(self, read.extend(names) or names, *dtypes),
    )
    groups = ShardThreads(3).tp_groups
    for tp_group, own in zip(groups, (range(6), range(6, 11), range(11, 16)), strict=True):
        read.clear()
        implementation = NativeImplementation(config, torch.float32, "cpu", tp_group)
        shard = implementation.build_model(implementation.read_weights(tmp_path))
        experts = {int(name.split(".experts.")[1].split(".")[0]) for name in read if ".experts." in name}
        assert experts == {*own} and len(read) == len({*read})
        all_weights = NativeImplementation(config, torch.float32).read_weights(tmp_path)
        wanted = dict(implementation.shard_weights(all_weights))
        for name, parameter in shard.named_parameters():
            assert torch.equal(parameter, wanted[name]), name


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize("make_model", [odd_model, odd_experts])
def test_bits_do_not_depend_on_the_batch(make_model: Callable[[], Transformer]) -> None:
    config = Config.parse({"model": {"max_model_len": 96, "max_num_seqs": 4}})
    runner = ShardedRunner(make_model(), 3, max_num_seqs=4, max_model_len=96)
    engine = LocalEngine(config, runner, None)
    prompts = [[5, 6, 7], list(range(40)), [8] * 17, [1]]
    settings = LopaSettings(max_new_tokens=30, block_size=8, num_branches=3, confidence_threshold=0.2)
    together = engine.generate(prompts, settings, trace=True)
    for prompt, result in zip(prompts, together, strict=True):
        alone = engine.generate(prompt, settings, trace=True)
        assert alone.trace == result.trace
        assert alone.token_ids == result.token_ids


@pytest.mark.parametrize("quantization", ["none", "w8a8"])
@pytest.mark.parametrize("size", [2, 3])
def test_shards_share_all_but_what_is_replicated(size: int, quantization: str) -> None:
    whole = odd_model(quantization=quantization, qkv_bias=True, qk_norm=True)
    parts = [shard_model(whole, tp_group) for tp_group in ShardThreads(size).tp_groups] if size == 3 else []
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
        "prefix_cache": "exact",
    }
    engine = engine_in_two_shards(Config.parse({"model": model}))
    wanted = LocalEngine.from_config(Config.parse({"model": {**model, "prefix_cache": "none"}}))
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
        shard_model(load_tiny_model(), ShardThreads(3).tp_groups[0])
    assert load_tiny_model().config.shard(1) == load_tiny_model().config
    with pytest.raises(
        SettingsError, match=r"expert_parallel: got true for a dream model, which has no experts"
    ):
        load_tiny_model().config.with_expert_parallel(True)
    shape = odd_experts(expert_parallel=False).config
    assert shape.shard_sizes == (1, 3)
    few = replace(shape, experts=replace(shape.experts, parallel=True, count=2, groups=1, kept_groups=1))  # type: ignore[type-var]
    with pytest.raises(SettingsError, match=r"got 3 for .* 27 columns of shared expert, 2 experts; .*\(1\)"):
        few.shard(3)


def test_parts_cover_everything_once() -> None:
    for total in range(1, 20):
        for size in range(1, total + 1):
            parts = [shard_range(total, rank, size) for rank in range(size)]
            assert [index for part in parts for index in part] == list(range(total))
            assert len(parts[0]) - len(parts[-1]) <= 1
