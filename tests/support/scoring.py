"""Scores of logits that a test makes up, by the functions that a step uses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lopa_ray.execution import sampler
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.logit_change_tables import DeviceChanges, change_logits
from lopa_ray.execution.packing import PackingOptions
from lopa_ray.execution.rows_to_score import RowsToScore
from lopa_ray.execution.sampler import SamplerOutput
from lopa_ray.execution.vocab_parallel import VocabOps
from lopa_ray.protocol.logit_changes import LogitChanges
from lopa_ray.protocol.plan import Branch, Fill, Plan, ScheduledRequest
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.vocabulary import Vocabulary


def rows_to_score(
    positions: Sequence[int],
    step: int,
    sampling: SamplingParams,
    vocab_size: int,
    eos: int,
    *,
    fuse_greedy: bool = False,
    logit_changes: LogitChanges | None = None,
    fills: tuple[Fill, ...] = (),
) -> RowsToScore:
    """Rows of one branch of a request, one per position."""
    branch = Branch(((0, 0),), range(len(positions)), fills, draw_key=step)
    plan = Plan(step, 0, (), (branch,), (), sampling_params=sampling, logit_changes=logit_changes)
    lane = Lane(0, 0, np.zeros(0, np.int64), ((0, 0),), fills, (), ScheduledRequest(1, 0, plan, (0,)), 0)
    options = PackingOptions(
        len(positions), 1, Vocabulary(vocab_size, -1, eos), fuse_greedy, lambda rows: rows
    )
    return RowsToScore([lane], np.zeros(len(positions), np.int64), np.array(positions, np.int64), options)


def score_rows(
    logits: Tensor,
    positions: Sequence[int],
    step: int,
    sampling: SamplingParams,
    banned: Tensor,
    eos: int,
    allowed_tokens: Tensor | None = None,
    ops: VocabOps | None = None,
    logit_changes: LogitChanges | None = None,
    fills: tuple[Fill, ...] = (),
) -> SamplerOutput:
    """Scores of whole rows [N, V], or of the columns that `ops` names."""
    ops = ops or VocabOps(logits.shape[-1])
    rows = rows_to_score(
        positions, step, sampling, ops.vocab_size, eos, logit_changes=logit_changes, fills=fills
    )
    columns = {name: torch.from_numpy(column) for name, column in rows.columns.items()}
    change = None
    if rows.groups[0].kind.has_logit_changes:
        tables = (columns["canvas_changes"], columns["fill_changes"])
        on_device = [DeviceChanges.of(table, ops.local_ids) for table in tables]
        change = partial(change_logits, rows=columns["change_rows"], tables=on_device)
    numbers, ending_ids = columns["score_numbers"], columns["ending_ids"]
    return sampler.score_rows(
        logits, numbers, ending_ids, rows.groups[0], banned, allowed_tokens, ops, change
    )
