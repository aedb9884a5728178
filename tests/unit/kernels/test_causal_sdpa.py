"""Causal rows in one call: each has the same bits whatever rows are beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lopa_ray.execution.attention import SDPA_ATTENTION
from lopa_ray.execution.attention_trial import attention_formula
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.sdpa import causal_sdpa
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan
from support.tiny_model import load_tiny_model

pytestmark = pytest.mark.medium

CAPACITY = 96


def tensors(heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(heads * dim)
    shapes = (CAPACITY, heads, dim), (kv_heads, CAPACITY, dim), (kv_heads, CAPACITY, dim)
    q, keys, values = (torch.randn(*shape, generator=draw).to(dtype) for shape in shapes)
    return q, keys, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 56), (6, 2, 16), (3, 3, 6), (2, 1, 5)])
def test_a_causal_row_has_the_same_bits_in_any_company(
    heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> None:
    q, keys, values = tensors(heads, kv_heads, dim, dtype)
    whole = causal_sdpa(q, keys, values, 1)
    for at in range(CAPACITY):
        row = q[at : at + 1]
        wanted = attention_formula(row, keys[:, : at + 1], values[:, : at + 1])
        torch.testing.assert_close(whole[at : at + 1].float(), wanted, atol=2e-2, rtol=2e-2)
        assert torch.equal(causal_sdpa(row, keys, values, at + 1), whole[at : at + 1])
        changed = keys.clone(), values.clone()
        for of_others in changed:
            of_others[:, at + 1 :] = 1e4  # what the row does not see
        assert torch.equal(causal_sdpa(row, *changed, at + 1), whole[at : at + 1])
    for first, stop in (0, 33), (7, 50), (31, 96), (64, 65):
        assert torch.equal(causal_sdpa(q[first:stop], keys, values, first + 1), whole[first:stop])


def test_what_another_request_left_in_the_slot_is_not_read() -> None:
    """It may be no number: a model whose activations overflow ends one request, and not the next."""
    runner = BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=CAPACITY, attention=SDPA_ATTENTION)
    branch = Branch(((12, 12),), range(8, 12), causal_stop=8)
    plan = Plan(1, 0, (*range(2, 10), *[127] * 4), (branch,), ())
    step = StepPlan(0, 1, (ScheduledRequest(1, 0, plan, (0,)),))
    ((_, wanted),) = runner.execute(step).reports
    runner.cache.data.fill_(torch.nan)
    runner.reconcile({}, ())
    ((_, got),) = runner.execute(step).reports
    assert got.tokens.tolist() == wanted.tokens.tolist()
    assert got.scores.tolist() == wanted.scores.tolist()
