"""Scores of logits that a test makes up, by the functions that a step uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lopa_ray.execution import sampler
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.packing import PackingOptions
from lopa_ray.execution.rows_to_score import RowsToScore
from lopa_ray.execution.sampler import SamplerOutput
from lopa_ray.execution.scoring_kind import ScoringKind
from lopa_ray.kernels.row_scores import row_scores
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import ChooseTokens
from lopa_ray.protocol.vocabulary import Vocabulary


def rows_to_score(
    positions: Sequence[int],
    step: int,
    sampling: SamplingParams,
    vocab_size: int,
    eos: int,
) -> RowsToScore:
    """Rows of one branch of a request, one per position."""
    branch = Branch(((0, 0),), range(len(positions)), (), scoring=ChooseTokens(draw_key=step))
    plan = Plan(step, 0, (), (branch,), (), sampling_params=sampling)
    lane = Lane(0, 0, np.zeros(0, np.int64), ((0, 0),), (), (), ScheduledRequest(1, 0, plan, (0,)), 0)
    options = PackingOptions(len(positions), 1, Vocabulary(vocab_size, -1, eos), lambda rows: rows)
    return RowsToScore([lane], np.zeros(len(positions), np.int64), np.array(positions, np.int64), options)


def score_rows(
    logits: Tensor,
    positions: Sequence[int],
    step: int,
    sampling: SamplingParams,
    banned: Tensor,
    eos: int,
    allowed_tokens: Tensor | None = None,
) -> SamplerOutput:
    """Scores of rows [N, V]; as in a step, the kernel scores greedy ones without a constraint."""
    rows = rows_to_score(positions, step, sampling, logits.shape[1], eos)
    (group,) = rows.groups
    numbers, ending_ids = (torch.from_numpy(rows.columns[name]) for name in ("score_numbers", "ending_ids"))
    if allowed_tokens is not None:
        kind = ScoringKind.of(sampling, logits.shape[1], is_constrained=True, has_logit_changes=False)
        group = replace(group, kind=kind)
    if group.kind.is_fused:
        tokens, *others = row_scores(logits, numbers, ending_ids, banned).unbind(1)
        probabilities, logprobs, scores = (column.float() for column in others)
        nothing = logits.new_empty(len(logits), 0)
        return SamplerOutput(
            tokens.to(torch.int64), probabilities, logprobs, scores, nothing.to(torch.int64), nothing
        )
    return sampler.score_rows(logits, numbers, ending_ids, group, banned, allowed_tokens)
