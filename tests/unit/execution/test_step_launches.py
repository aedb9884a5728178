"""How many kernels, copies and waits a step takes on an accelerator, and whether its graph depends on the plan."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lopa_lab.bench.launch_counter import META, LaunchCounter
from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.lane import Lane, lanes_of
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.padding import bucket_rows, padded_rows
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.experts import MixtureOfExperts
from lopa_ray.model.linear import prepare
from lopa_ray.model.tensor_parallel import SingleShard
from lopa_ray.model.transformer import Transformer
from lopa_ray.protocol.logit_changes import LogitChanges, pack_ids
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.vocabulary import Vocabulary
from support.paths import GOLDEN
from support.tiny_model import ALL_MODELS, load_tiny_model

CAPACITY, SLOTS, PROMPT = 768, 64, 512


@cache
def config_of(name: str):
    """A recorded tiny model's configuration, or a published one."""
    if name == "sdar-4b":
        return load_config(GOLDEN / "published" / "sdar-4b-chat")
    return load_tiny_model(name).config


def runner_of(name: str, vocab_size: int | None = None) -> BranchRunner:
    """A runner whose accelerator is the meta device."""
    config = config_of(name)
    if vocab_size is not None:
        config = replace(
            config, vocab_size=vocab_size, mask_token_id=vocab_size - 1, eos_token_id=vocab_size - 2
        )
    with META:
        model = Transformer(config)
    return BranchRunner(
        model.bfloat16(), max_num_seqs=SLOTS, max_model_len=CAPACITY, attention=PackedAttention()
    )


SIZES = [(1, 1, 64), (1, 8, 64), (1, 15, 32), (8, 8, 64), (32, 8, 32), (64, 1, 16)]


@pytest.mark.parametrize(("requests", "branches", "rows"), SIZES)
@pytest.mark.parametrize("name", [*ALL_MODELS, "sdar-4b"])
def test_a_step_is_one_copy_in_a_bounded_number_of_kernels_and_one_copy_out(name, requests, branches, rows):
    """Where all requests commit and stage, in four segments."""
    runner = runner_of(name)
    layers, mask = runner.model.config.num_layers, runner.vocabulary.mask_token_id
    segments = tuple((PROMPT + at, PROMPT + at) for at in range(rows // 4, rows + 1, rows // 4))
    first, second = (
        [
            plan_of(mask, branches, rows, start=start, step=step, committed=8 * (step - 1), staged=8,
                    segments=tuple((a - PROMPT + start, b - PROMPT + start) for a, b in segments))
            for _ in range(requests)
        ]
        for start, step in ((PROMPT, 1), (PROMPT + 8, 2))
    )  # fmt: skip
    with LaunchCounter():
        runner.execute(step_of(runner, first))
    plan = step_of(runner, second)
    with LaunchCounter() as counter:
        report = runner.execute(plan)
    assert len(report.reports) == requests * branches
    assert (counter.copies_in, counter.syncs) == (1, 1)
    per_layer = 37 if runner.model.config.experts is None else 75
    assert counter.total <= 100 + per_layer * layers, counter.launches
    commits = [name for name in counter.launches if "commit_rows" in name]
    assert [counter.launches[name] for name in commits] == [1]
    assert [runner.cache.committed[at] for at in range(requests)] == [(range(PROMPT + 8),)] * requests


@pytest.mark.parametrize("name", ["llada2-tiny-3l", "sdar-4b"])
def test_soft_inputs_have_the_host_wait_for_nothing_and_are_few_kernels(name):
    """As many more in any company: one request with them has all rows of the step computed so."""
    runner = runner_of(name)
    plain = plan_of(runner.vocabulary.mask_token_id, 4, 32)
    soft = replace(plain, input_weights=(0.5,) * 32)
    added = []
    for other in ([], [plain] * 3):
        totals = []
        for plans in ([plain, *other], [soft, *other]):
            plan = step_of(runner, plans)
            with LaunchCounter() as counter:
                runner.execute(plan)
            assert (counter.copies_in, counter.syncs) == (1, 1)
            totals.append(counter.total)
        added.append(totals[1] - totals[0])
    assert 0 < added[0] == added[1] <= 25


SAMPLINGS = {
    "nucleus": SamplingParams(0.7, top_p=0.9, seed=3),
    "top-k": SamplingParams(0.7, top_k=8, confidence_temperature=0.5),
    "filters": SamplingParams(0.7, top_p=0.9, top_k=8, top_k_first=True, ranking="margin"),
    "float64": SamplingParams(precision="float64", ranking="neg_entropy"),
    "top-logprobs": SamplingParams(top_logprobs=5),
    "min-tokens": SamplingParams(no_eos_before=PROMPT + 20, stop_token_ids=(3, 5)),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_no_way_of_sampling_has_the_host_wait(name):
    runner = runner_of("dream-tiny-2l", vocab_size=1000)
    mask = runner.vocabulary.mask_token_id
    # Requests differ in their numbers, and are scored together.
    plans = [
        plan_of(
            mask, 4, 32, sampling=replace(SAMPLINGS[name], seed=at, top_k=SAMPLINGS[name].top_k and 3 + at)
        )
        for at in range(4)
    ]
    counts = []
    for together in (plans[:1], plans):
        plan = step_of(runner, together)
        with LaunchCounter() as counter:
            runner.execute(plan)
        assert (counter.copies_in, counter.syncs) == (1, 1)
        counts.append(counter.total)
    assert counts[0] == counts[1] <= 100 + 37 * 2


def test_penalties_cost_launches_and_no_wait_where_they_are_on():
    """For any number of requests, whose tables differ in size; requests without them are scored as ever."""
    runner = runner_of("dream-tiny-2l", vocab_size=1000)
    plain = [plan_of(runner.vocabulary.mask_token_id, 4, 32) for _ in range(4)]
    changes = [
        LogitChanges(1.2, 0.5, 0.1, prompt=pack_ids(range(50 * at + 20)), answer=pack_ids([3, 3, at]))
        for at in range(4)
    ]
    forks = [
        replace(
            plan,
            logit_changes=change,
            branches=tuple(
                replace(branch, fills=((PROMPT + at, 7),)) for at, branch in enumerate(plan.branches)
            ),
        )
        for plan, change in zip(plain, changes, strict=True)
    ]
    counters = []
    for together in (plain, forks[:1], forks, plain[:2] + forks[2:]):
        with LaunchCounter() as counter:
            runner.execute(step_of(runner, together))
        assert (counter.copies_in, counter.syncs) == (1, 1)
        counters.append(counter)
    without, one, four, mixed = counters
    fused = [sum(n for name, n in counter.launches.items() if "row_scores" in name) for counter in counters]
    assert fused == [2, 0, 0, 2]
    assert one.total == four.total <= without.total + 70
    assert not any("scatter" in name for name in without.launches)
    assert mixed.total <= four.total + 10


def test_given_tokens_cost_launches_and_no_wait():
    """Rows whose tokens are given are scored together, apart from those that choose one."""
    runner = runner_of("dream-tiny-2l", vocab_size=1000)
    plain = [plan_of(runner.vocabulary.mask_token_id, 4, 32) for _ in range(4)]
    given = [replace(plan, targets=tuple(range(32))) for plan in plain]
    totals = []
    for together in (plain, given[:1], given, plain[:2] + given[2:]):
        with LaunchCounter() as counter:
            runner.execute(step_of(runner, together))
        assert (counter.copies_in, counter.syncs) == (1, 1)
        totals.append(counter.total)
    without, one, four, mixed = totals
    assert one == four <= without + 20 and mixed <= without + 20


def graph_hash(runner: BranchRunner, packing: Packing) -> str:
    """The hash of the traced forward and scoring of a step."""

    def step(*columns: torch.Tensor) -> torch.Tensor:
        given = StepColumns(*columns)
        rows, _ = runner.forward(packing, given)
        return runner.score(packing, given, rows)

    columns = packing.to_device(META)
    with torch.inference_mode():
        graph = make_fx(step)(*(getattr(columns, name) for name in StepColumns.__slots__))
    shapes = [str(node.meta["tensor_meta"].shape) for node in graph.graph.nodes if "tensor_meta" in node.meta]
    return hashlib.sha256(json.dumps([graph.code, shapes]).encode()).hexdigest()


def test_launches_do_not_depend_on_the_number_of_experts():
    """Nor on the format of their weights."""
    totals = []
    for experts, quantization in ((16, "none"), (512, "none"), (16, "w8a8"), (512, "w8a8")):
        config = config_of("llada2-tiny-3l")
        config = replace(
            config, quantization=quantization, experts=replace(config.experts, count=experts, per_token=8)
        )
        with META:
            model = Transformer(config)
        prepare(model)
        runner = BranchRunner(model, max_num_seqs=1, max_model_len=CAPACITY, attention=PackedAttention())
        plan = step_of(runner, [plan_of(config.mask_token_id, 4, 32)])
        with LaunchCounter() as counter:
            runner.execute(plan)
        assert (counter.copies_in, counter.syncs) == (1, 1)
        totals.append(counter.total)
    assert totals[0] == totals[1] and totals[2] == totals[3]


@pytest.mark.parametrize("quantization", ["none", "w8", "w8a8"])
@pytest.mark.parametrize("expert_parallel", [True, False])
def test_launches_of_a_shard_do_not_depend_on_them_either(quantization, expert_parallel):
    """A layer's experts take a few launches more where the shard has not all of them."""
    totals = []
    for count in (16, 512):
        config = config_of("llada2-tiny-3l")
        shape = replace(config.experts, count=count, per_token=8, parallel=expert_parallel)
        config = replace(config, quantization=quantization, experts=shape).shard(2)
        with META:
            layer = MixtureOfExperts(config, SingleShard(rank=1, size=2))
            prepare(layer)
            rows = torch.empty(160, config.hidden_size)
            with torch.inference_mode(), LaunchCounter() as counter:
                layer(rows)
        assert (counter.copies_in, counter.syncs) == (0, 0)
        totals.append(counter.total)
    assert totals[0] == totals[1] <= 75


@pytest.mark.long
def test_the_graph_of_a_step_depends_on_its_bucket_alone():
    """Not on where lanes begin, in which slots, how many they are, what they see, or what was committed."""
    runner = runner_of("sdar-tiny-3l")
    mask = runner.vocabulary.mask_token_id
    draw = random.Random(0)
    hashes = defaultdict(set)
    shapes = defaultdict(set)
    for rows in (64, 96):
        for lanes in (1, 2, 4, 8, 16) * 3:
            per_lane = rows // lanes
            lane_plans, slots = [], draw.sample(range(SLOTS), 16)
            left = lanes
            while left:
                branches = draw.randint(1, left)
                left -= branches
                start = draw.choice([0, 1, 100, PROMPT])
                cut = start + draw.randint(1, per_lane)
                stop = start + per_lane
                segments = ((cut, draw.choice([cut, stop])), (stop, stop)) if cut < stop else ((stop, stop),)
                lane_plans.append(plan_of(mask, branches, per_lane, start=start, segments=segments))
            requests = step_of(runner, lane_plans, slots[: len(lane_plans)]).requests
            packing = Packing(
                [lane for scheduled in requests for lane in lanes_of(scheduled)], (), runner.packing_options
            )
            assert packing.rows_bucket == rows
            hashes[rows].add(graph_hash(runner, packing))
            shapes[rows].add((lanes, len(lane_plans)))
    assert [len(of_bucket) for of_bucket in hashes.values()] == [1, 1]
    assert hashes[64] != hashes[96]
    assert all(len(of_bucket) > 5 for of_bucket in shapes.values())


def test_buckets_waste_little():
    for rows in range(1, 5000, 7):
        bucket = bucket_rows(rows)
        assert rows <= bucket <= max(16 * -(-rows // 16), rows * 9 / 8)
        assert bucket_rows(bucket) == bucket and bucket % 16 == 0
    assert len({bucket_rows(rows) for rows in range(1, 4097)}) < 60


@pytest.mark.parametrize("bucket", [padded_rows, bucket_rows])
@pytest.mark.parametrize(("lanes", "rows"), [(64, 1), (32, 1), (7, 3), (40, 0), (1, 0)])
def test_many_short_lanes_take_tiles_and_no_rows(lanes, rows, bucket):
    """A lane whose rows are all stored has none."""
    options = PackingOptions(1024, 1, Vocabulary(1000, 999, 998, shifted=True), bucket)
    segments = ((10 + rows, 10 + rows),) if rows else ()
    packing = Packing([Lane(at, 10, np.zeros(rows, np.int64), segments) for at in range(lanes)], (), options)
    assert packing.rows_bucket == bucket(max(1, lanes * rows))
    padding = packing.rows_bucket - lanes * rows
    assert (packing.columns.tiles[:, 3] > 0).sum() == (lanes if rows else 0) + (padding > 0)
    first_rows = packing.columns.lanes[:, 2]
    assert first_rows[-1] == packing.rows_bucket and (np.diff(first_rows) >= 0).all()
