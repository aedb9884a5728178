"""Requests with different sampling parameters in one step."""

from __future__ import annotations

import pytest
import torch

from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.scoring_kind import row_numbers
from lopa_ray.kernels.row_scores import row_scores
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import ChooseTokens
from support.tiny_model import load_tiny_model

VOCAB = 40


def test_the_padding_of_a_group_asks_for_nothing_that_the_group_has_not() -> None:
    """Requests of several kinds in one step: padding has the numbers of some of them."""
    runner = BranchRunner(load_tiny_model(), max_num_seqs=3, max_model_len=40)
    mask = runner.vocabulary.mask_token_id
    samplings = (
        SamplingParams(0.7, top_k=90, precision="float64"),
        SamplingParams(0.7, top_k=2),
        SamplingParams(0.7, top_p=0.5),
    )
    requests = []
    for slot, sampling in enumerate(samplings):
        branches = (Branch(((3, 3),), range(3), scoring=ChooseTokens(draw_key=1)),)
        plan = Plan(1, 0, (5, mask, mask), branches, (), sampling_params=sampling)
        requests.append(ScheduledRequest(slot + 1, slot, plan, (0,)))
    together = runner.execute(StepPlan(0, 1, tuple(requests)))
    for request, (_, report) in zip(requests, together.reports, strict=True):
        ((_, alone),) = runner.execute(StepPlan(0, 1, (request,))).reports
        assert report.tokens.tolist() == alone.tokens.tolist()
        assert report.probabilities.tolist() == alone.probabilities.tolist()


@pytest.mark.parametrize("ids", [[[0, -1], [0, 3]], [[VOCAB - 1, 10**6], [-1, VOCAB + 5]]])
def test_ids_that_are_none_let_no_other_through(ids) -> None:
    """Requests of one step may have different numbers of ids that end an answer."""
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    for row, first in enumerate(ids):
        logits[row, first[0] if first[0] >= 0 else 7] = 50.0
    nothing = torch.zeros(VOCAB, dtype=torch.bool)
    numbers = torch.tensor([row_numbers(SamplingParams())] * 2, dtype=torch.float64)
    tokens = row_scores(logits, numbers, torch.tensor(ids), nothing)[:, 0].long().tolist()
    for row, (token, ruled_out) in enumerate(zip(tokens, ids, strict=True)):
        left = [candidate for candidate in range(VOCAB) if candidate not in ruled_out]
        assert token == max(left, key=lambda candidate: logits[row, candidate].item())
