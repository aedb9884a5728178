"""Scoring rows of which every shard has a part, against scoring whole rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from lopa_ray.execution.sampler import SamplerOutput
from lopa_ray.execution.vocab_parallel import NUCLEUS_CANDIDATES, VocabOps, VocabParallelOps
from lopa_ray.protocol.logit_changes import LogitChanges, pack_ids
from lopa_ray.protocol.sampling_params import SamplingParams
from support.scoring import score_rows
from support.thread_tensor_parallel import HostReads, ShardThreads, ThreadTensorParallelGroup

ROWS = 16
NUCLEUS = torch.full((ROWS, 1), 0.9)

shards = cache(ShardThreads)


def scored_by_shards(
    size: int,
    logits: Tensor,
    sampling: SamplingParams,
    banned: Tensor,
    allowed_tokens: Tensor | None,
    **changes: Any,
) -> list[SamplerOutput]:
    vocab = logits.shape[1]

    def score(shard: ThreadTensorParallelGroup) -> SamplerOutput:
        ops = VocabParallelOps(vocab, shard)
        local = slice(ops.local_ids.start, ops.local_ids.stop)
        allowed = None if allowed_tokens is None else allowed_tokens[:, local]
        return score_rows(
            logits[:, local],
            list(range(ROWS)),
            1,
            sampling,
            banned[local],
            vocab - 1,
            allowed,
            ops,
            **changes,
        )

    return shards(size).run(score)


def agree(whole: SamplerOutput, shard: SamplerOutput) -> None:
    assert shard.tokens.tolist() == whole.tokens.tolist()
    assert shard.top_tokens.tolist() == whole.top_tokens.tolist()
    for name in ("probabilities", "logprobs", "scores", "top_logprobs"):
        torch.testing.assert_close(getattr(shard, name), getattr(whole, name), atol=2e-5, rtol=1e-5)


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    # No mass that a few equal tokens add up to: rounding would decide whether it crosses.
    top_p=st.sampled_from([None, 0.31378, 0.77719, 0.97331]),
    top_k=st.sampled_from([None, None, 1, 7, 90]),
    top_k_first=st.booleans(),
    seed=st.integers(0, 9),
    ranking=st.sampled_from(["probability", "margin", "neg_entropy"]),
    precision=st.sampled_from(["float32", "float64", "float16"]),
    confidence_temperature=st.sampled_from([None, None, 0.7]),
    no_eos_before=st.sampled_from([0, 9]),
    stop_token_ids=st.sampled_from([(), (3,)]),
    top_logprobs=st.sampled_from([0, 0, 1, 5]),
)


@settings(max_examples=120, deadline=None)
@given(
    size=st.integers(2, 4),
    vocab=st.sampled_from([11, 128, 129, 403]),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.3, 3.0]),
    grid=st.sampled_from([0.0, 0.5, 2.0]),
    constrained=st.booleans(),
    changing=st.booleans(),
    sampling=samplings,
)
def test_shards_score_as_one_process(size, vocab, seed, spread, grid, constrained, changing, sampling):
    """`grid`: logits are multiples of it, so many are equal."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, vocab, generator=draw) * spread
    if grid:
        logits = (logits / grid).round() * grid
    banned = torch.rand(vocab, generator=draw) < 0.1
    banned[0] = False
    allowed_tokens = None
    if constrained:
        allowed_tokens = torch.rand(ROWS, vocab, generator=draw) < 0.3
        allowed_tokens[: ROWS // 2] = True
        allowed_tokens[:, 0] = True
    changes = {}
    if changing:
        ids = torch.randint(vocab, (4, vocab // 4), generator=draw).tolist()
        biases = np.linspace(-2.0, 100.0, len({*ids[0]}))
        logit_changes = LogitChanges(
            1.25, 0.5, -0.25, pack_ids({*ids[0]}), biases.tobytes(), pack_ids({*ids[1]}), pack_ids(ids[2])
        )
        changes = {"logit_changes": logit_changes, "fills": tuple(enumerate(ids[3]))}
    whole = score_rows(
        logits, list(range(ROWS)), 1, sampling, banned, vocab - 1, allowed_tokens, VocabOps(vocab), **changes
    )
    first, *others = scored_by_shards(size, logits, sampling, banned, allowed_tokens, **changes)
    agree(whole, first)
    for other in others:
        assert all(
            torch.equal(getattr(other, name), getattr(first, name)) for name in SamplerOutput.__slots__
        )


def test_equal_logits_go_to_the_lowest_ids():
    logits = torch.zeros(ROWS, 300)
    banned = torch.zeros(300, dtype=torch.bool)
    banned[:2] = True
    for sampling in (SamplingParams(top_logprobs=4), SamplingParams(top_p=0.5, top_k=3, top_logprobs=4)):
        for scored in scored_by_shards(3, logits, sampling, banned, None):
            assert scored.tokens.tolist() == [2] * ROWS
            assert scored.top_tokens.tolist() == [[0, 1, 2, 3]] * ROWS


@pytest.mark.parametrize("wide", [[], [3], list(range(ROWS))])
def test_only_a_wide_nucleus_takes_whole_rows(wide):
    """The best candidates of each shard decide, but for rows that are so flat that these are not enough."""
    vocab, size = 20 * NUCLEUS_CANDIDATES, 2
    logits = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(0)) * 8
    logits[wide] *= 0.01
    expected = VocabOps(vocab).outside_nucleus(logits, NUCLEUS)
    assert [row for row in range(ROWS) if (~expected[row]).sum() > NUCLEUS_CANDIDATES] == wide
    gathered: list[int] = []

    def outside(shard: ThreadTensorParallelGroup) -> Tensor:
        ops = VocabParallelOps(vocab, shard)
        gather = shard.all_gather

        def noted(x: Tensor) -> Tensor:
            gathered.append(x.shape[-1])
            return gather(x)

        shard.all_gather = noted
        with HostReads(shard):
            return ops.outside_nucleus(logits[:, ops.local_ids.start : ops.local_ids.stop], NUCLEUS)

    outside_of_shards = ShardThreads(size).run(outside)
    assert torch.equal(torch.cat(outside_of_shards, dim=1), expected)
    assert (max(gathered) > NUCLEUS_CANDIDATES) == bool(wide)


def test_nothing_is_certain_in_a_row_of_nan():
    logits = torch.randn(ROWS, 40)
    logits[2] = torch.nan
    for scored in scored_by_shards(
        2, logits, SamplingParams(top_logprobs=2), torch.zeros(40, dtype=torch.bool), None
    ):
        assert scored.scores.isnan().tolist() == [row == 2 for row in range(ROWS)]
