"""LMHead: applies the LM head to the rows that decide masked positions only, and scores their logits.

Shape suffixes: N rows to score, R rows of the forward, D hidden size, V vocabulary, S slots, M top tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.execution.logit_change_tables import change_logits
from lopa_ray.execution.rows_to_score import ScoringGroup
from lopa_ray.execution.rule_memory import add_credits, divergences, verify_drafts
from lopa_ray.execution.sampler import SamplerOutput, score_candidates, score_rows, score_targets
from lopa_ray.execution.scoring_kind import COLUMN
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.padding import ROW_MULTIPLE, padded_rows
from lopa_ray.kernels.row_scores import row_scores
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.config_json.special_tokens import NO_MASK
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.tensor_parallel import shard_range
from lopa_ray.protocol.scoring import (
    DRAW_COLUMNS,
    MAX_DRAFT_BEAMS,
    MAX_DRAFT_DEPTH,
    MEMORY_COLUMNS,
    ContinuationDrafts,
    Credits,
    Drafted,
    ShadowSlots,
    StateBefore,
)

MAX_HEAD_ROWS = 512  # maximum number of rows per LM head call

MAX_LOGITS_BYTES = 160 * 2**20
"""Maximum bytes of the fp32 logits of an LM head call: 256 rows of 152k to 157k tokens (Dream, SDAR, LLaDA2.0). Nucleus
sampling or a constraint needs several times as much."""

TILE_ROWS = 128
"""Rows of a tile of matmuls on GPUs. A GPU computes whole tiles, also for a call with fewer rows."""


def head_rows(vocab_size: int) -> int:
    """Rows per LM head call for that many tokens: as many as both limits allow, in whole tiles if one fits."""
    rows = min(MAX_HEAD_ROWS, MAX_LOGITS_BYTES // (4 * vocab_size))
    multiple = TILE_ROWS if rows >= TILE_ROWS else ROW_MULTIPLE
    return max(rows // multiple, 1) * multiple


class LMHead:
    def __init__(self, model: MaskPredictor) -> None:
        """The mask token, if there is one, and the padding of the vocabulary are never chosen."""
        config = model.config
        self._lm_head, self._embed, self._draft_head = model.lm_head, model.embed, model.draft_head
        self.max_rows = head_rows(config.vocab_size)
        device = model.lm_head.weight.device
        # torch's reductions on GPUs choose their order by the number of rows, so it is the same in all calls.
        has_fixed_rows = isinstance(config, NativeConfig) and config.batch_invariant and device.type != "cpu"
        self._rows_of_kernels = ROW_MULTIPLE if has_fixed_rows else self.max_rows
        """Rows per call where torch's operations score them."""
        self._tp_group = model.tp_group
        shards = range(self._tp_group.size)
        self._columns = [len(shard_range(config.vocab_size, shard, len(shards))) for shard in shards]
        """The number of logits of each shard."""
        self._banned_tokens = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
        if config.mask_token_id != NO_MASK:
            self._banned_tokens[config.mask_token_id] = True
        self._banned_tokens[config.unpadded_vocab_size or config.vocab_size :] = True

    def full_logits(self, hidden: Tensor) -> Tensor:
        """Any number of hidden rows [N, D] → fp32 logits [N, V]."""
        padding = hidden.new_zeros(padded_rows(len(hidden)) - len(hidden), hidden.shape[1])
        return self._logits(torch.cat((hidden, padding)))[: len(hidden)].float()

    def _logits(self, rows: Tensor) -> Tensor:
        """Hidden rows [N, D] → logits [N, V] in the model's dtype. All shards get the logits of the whole vocabulary,
        and score them alike: no host waits for another shard, which may be lost."""
        logits: Tensor = self._lm_head(rows)
        if self._tp_group.size == 1:
            return logits
        padded = F.pad(logits, (0, self._columns[0] - logits.shape[1]))
        parts = zip(self._tp_group.all_gather(padded), self._columns, strict=True)
        return torch.cat([part[:, :columns] for part, columns in parts], dim=1)

    def score(
        self,
        groups: list[ScoringGroup],
        columns: StepColumns[Tensor],
        rows: Tensor,
        on_logits: Callable[[Tensor, Tensor], None] | None = None,
        drafts: ContinuationDrafts | None = None,
    ) -> Tensor:
        """Score `rows` [R + S, D] in the model's dtype: the rows of the forward, then the boundary rows of slots.
        `on_logits` is called with the logits of all N rows, part by part in order, and their numbers. `drafts`: what
        the draft head is asked for. Returns one flat
        fp64 tensor: the scores [N, 4] of `row_scores`, then for each group its top tokens and their log-probabilities,
        [2, rows, M], and if a rule asks more of the rows that of all rows, [N, columns], and at last their
        draws, [N, 2], if they are asked for."""
        scores, tops = [], []
        width = max(MEMORY_COLUMNS[group.kind.memory] for group in groups)
        if drafts is not None:
            width = max(width, MEMORY_COLUMNS[ContinuationDrafts])
        memory = columns.score_numbers  # not used, so that other steps launch nothing for it
        if width:
            memory = memory.new_zeros(groups[-1].rows.stop, width)
        draws: Tensor | None = None
        allowed_tokens = self._unpack(columns.bitmasks)
        for group in groups:
            ids, logprobs = [], []
            most = self.max_rows if group.kind.is_fused else self._rows_of_kernels
            for first in range(group.rows.start, group.rows.stop, most):
                chunk = slice(first, min(first + most, group.rows.stop))
                numbers, ending_ids = columns.score_numbers[chunk], columns.ending_ids[chunk]
                logits = self._logits(rows.index_select(0, columns.score_rows[chunk]))
                if on_logits is not None:
                    on_logits(logits, numbers)
                if group.kind.is_fused:
                    scores.append(row_scores(logits, numbers, ending_ids, self._banned_tokens))
                    continue
                if group.kind.memory in (StateBefore, ShadowSlots, Drafted):
                    compared = self._compare(logits, group, columns, rows, chunk)
                    memory[chunk, : compared.shape[1]] = compared
                scored = self._score_rows(logits, group, columns, chunk, allowed_tokens, memory)
                if scored.draws is not None:
                    if draws is None:
                        draws = columns.score_numbers.new_zeros(groups[-1].rows.stop, DRAW_COLUMNS)
                    draws[chunk] = scored.draws.double()
                per_row = (scored.tokens, scored.probabilities, scored.logprobs, scored.scores)
                scores.append(torch.stack([column.double() for column in per_row], dim=1))
                ids.append(scored.top_tokens.double())
                logprobs.append(scored.top_logprobs.double())
            tops += [*ids, *logprobs] if group.kind.top_logprobs else []
        if drafts is not None:
            tokens = torch.cat([part[:, 0] for part in scores]).to(torch.int64)
            self._draft(drafts, tokens, columns, rows, memory)
        asked = [*([memory] if width else ()), *(() if draws is None else [draws])]
        parts = [part.flatten() for part in (*scores, *tops, *asked)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _draft(
        self,
        drafts: ContinuationDrafts,
        tokens: Tensor,
        columns: StepColumns[Tensor],
        rows: Tensor,
        memory: Tensor,
    ) -> None:
        """Write to `memory` fp64 [N, columns] what the draft head makes of each branch's row after its accepted tokens.
        `tokens` int64 [N]: those that the rows have decided."""
        assert self._draft_head is not None
        of_branch, guesses = columns.guesses.unbind(-1)
        right = (tokens[of_branch] == guesses).cumprod(1)
        last = of_branch.gather(1, right.sum(1, keepdim=True))[:, 0]
        hidden = rows.index_select(0, columns.score_rows[last])
        drafted = memory.new_zeros(len(last), 2, MAX_DRAFT_BEAMS, MAX_DRAFT_DEPTH)
        ids, probabilities = self._draft_head(hidden, tokens[last], self._embed, drafts.beams, drafts.depth)
        drafted[:, 0, : drafts.beams, : drafts.depth] = ids
        drafted[:, 1, : drafts.beams, : drafts.depth] = probabilities
        memory[last, : drafted[0].numel()] = drafted.flatten(1)

    def _compare(
        self, logits: Tensor, group: ScoringGroup, columns: StepColumns[Tensor], rows: Tensor, chunk: slice
    ) -> Tensor:
        """How far the logits of a chunk of rows are from the state before, what shadow slots make of their tokens, or
        what they make of drafts: fp64 [chunk, columns]."""
        if not len(columns.rows_beside):  # in this step no row has a state before
            return divergences(logits, logits, torch.zeros_like(logits[:, 0], dtype=torch.bool))
        at = columns.rows_beside[chunk]
        beside = self._logits(rows.index_select(0, at.clamp_min(0)))
        if group.kind.memory is StateBefore:
            return divergences(logits, beside, at >= 0)
        targets = columns.score_numbers[chunk, COLUMN.target, None].to(torch.int64)
        if group.kind.memory is Drafted:
            return verify_drafts(logits, beside, targets, self._banned_tokens)
        return beside.double().softmax(-1).gather(1, targets)

    def _score_rows(
        self,
        logits: Tensor,
        group: ScoringGroup,
        columns: StepColumns[Tensor],
        chunk: slice,
        allowed_tokens: Tensor,
        memory: Tensor,
    ) -> SamplerOutput:
        """`chunk`: the rows of these logits among the N; `memory` [N, columns] gets what credits report."""
        numbers, ending_ids = columns.score_numbers[chunk], columns.ending_ids[chunk]
        if group.kind.has_targets:
            return score_targets(logits, numbers)
        if group.kind.has_candidates:
            candidates = columns.candidates[chunk, : group.kind.top_logprobs]
            return score_candidates(logits, candidates, self._banned_tokens)
        allowed = change = None
        if group.kind.is_constrained:
            allowed = allowed_tokens.index_select(0, numbers[:, COLUMN.bitmask].to(torch.int64))
        if group.kind.has_logit_changes:
            tables = (columns.canvas_changes, columns.fill_changes)
            change = partial(change_logits, rows=columns.change_rows[chunk], tables=tables)
        if group.kind.memory is Credits:
            table = columns.credits[chunk]
            change = partial(add_credits, table=table, memory=memory[chunk], change=change)
        return score_rows(logits, numbers, ending_ids, group, self._banned_tokens, allowed, change)

    def _unpack(self, bitmasks: Tensor) -> Tensor:
        """Bitmasks of sets of tokens, uint8 [sets, bytes] → bool [sets, V]."""
        if not len(bitmasks):
            return bitmasks
        bits = torch.arange(8, dtype=torch.uint8, device=bitmasks.device)
        unpacked = (bitmasks[:, :, None] >> bits) & 1
        return unpacked.flatten(1)[:, : len(self._banned_tokens)].bool()
