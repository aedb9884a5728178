"""The LM head over just the rows that decide masked positions, and their scores.

Shape suffixes: N rows to score, R rows of the forward, D hidden size, V vocabulary (of a shard: its
part of it), S slots, M top tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.constraints.constraint import unpack_bitmask
from lopa_ray.execution.sampler import score_rows
from lopa_ray.execution.vocab_parallel import vocab_ops
from lopa_ray.model.transformer import Transformer
from lopa_ray.protocol.report import ScoredRows
from lopa_ray.protocol.sampling_params import SamplingParams

ROW_MULTIPLE = 16
"""On CPU a row of a matmul has the same bits whatever the other rows are, as long as every thread gets 4
rows or more; with this multiple that was seen with 1 and 2 threads."""

MAX_HEAD_ROWS = 512
"""Rows per LM head call, at most."""

MAX_LOGITS_BYTES = 2**27
"""Of the fp32 logits of an LM head call, at most. A nucleus or a constraint takes several times as much."""


@dataclass(frozen=True, slots=True)
class RowToScore:
    """One position to score, and the hidden row that decides it."""

    hidden_index: int
    """Row of the forward, or -1 - slot for a slot's boundary row."""
    position: int
    step: int
    sampling_params: SamplingParams
    bitmask: bytes | None = None
    """Tokens that it may get, packed; None: any."""


def padded_rows(rows: int) -> int:
    """How many rows a matmul should have so that its bits do not depend on their number."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def head_rows(vocab_size: int) -> int:
    """Rows per LM head call over so many tokens: a multiple of `ROW_MULTIPLE` that both limits leave."""
    rows = min(MAX_HEAD_ROWS, MAX_LOGITS_BYTES // (4 * vocab_size))
    return max(rows // ROW_MULTIPLE, 1) * ROW_MULTIPLE


class LMHead:
    """LM head and scoring of one model."""

    def __init__(self, model: Transformer, unpadded_vocab_size: int | None) -> None:
        """Ids from `unpadded_vocab_size` on (vocabulary padding) and the mask token are never chosen."""
        config = model.config
        self._lm_head = model.lm_head
        self._eos_token_id = config.eos_token_id
        self._tp_group = model.tp_group
        self.max_rows = head_rows(-(-config.vocab_size // self._tp_group.size))
        """Rows per call, the same on all shards."""
        self._vocab_ops = vocab_ops(config.vocab_size, model.tp_group)
        banned_tokens = torch.zeros(config.vocab_size, dtype=torch.bool, device=model.lm_head.weight.device)
        banned_tokens[config.mask_token_id] = True
        banned_tokens[config.vocab_size if unpadded_vocab_size is None else unpadded_vocab_size :] = True
        self._banned_tokens = banned_tokens[self._vocab_ops.local_ids.start : self._vocab_ops.local_ids.stop]

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden rows [N, D] → logits fp32 [N padded, V]; rows beyond N are padding."""
        missing = padded_rows(hidden.shape[0]) - hidden.shape[0]
        if missing > 0:
            hidden = torch.cat((hidden, hidden.new_zeros(missing, hidden.shape[1])))
        logits: Tensor = self._lm_head(hidden)
        return logits.float()

    def full_logits(self, hidden: Tensor) -> Tensor:
        """The same over the whole vocabulary, wherever its parts are."""
        return self._vocab_ops.gather_vocab(self.logits(hidden))

    def score(self, rows: list[RowToScore], hidden: Tensor, boundary: Tensor) -> ScoredRows:
        """Score rows from hidden [R, D] and boundary [S, D]; rows of equal sampling parameters go together."""
        count = len(rows)
        tokens = np.zeros(count, np.int32)
        probabilities = np.zeros(count, np.float64)
        logprobs = np.zeros(count, np.float32)
        scores = np.zeros(count, np.float64)
        top_tokens: dict[int, npt.NDArray[np.int32]] = {}
        top_logprobs: dict[int, npt.NDArray[np.float32]] = {}
        self._tp_group.wait()
        for members in _group_by_sampling(rows):
            for first in range(0, len(members), self.max_rows):
                chunk = members[first : first + self.max_rows]
                gathered = self._gather_rows([rows[i].hidden_index for i in chunk], hidden, boundary)
                positions = [rows[i].position for i in chunk]
                positions += [0] * (padded_rows(len(chunk)) - len(chunk))
                row = rows[chunk[0]]
                output = score_rows(
                    self.logits(gathered),
                    positions,
                    row.step,
                    row.sampling_params,
                    self._banned_tokens,
                    self._eos_token_id,
                    self._allowed_tokens([rows[i].bitmask for i in chunk], len(positions)),
                    self._vocab_ops,
                )
                self._tp_group.wait()
                n = len(chunk)
                tokens[chunk] = output.tokens[:n].cpu().numpy()
                probabilities[chunk] = output.probabilities[:n].cpu().numpy()
                logprobs[chunk] = output.logprobs[:n].cpu().numpy()
                scores[chunk] = output.scores[:n].cpu().numpy()
                if row.sampling_params.top_logprobs:
                    of_chunk = output.top_tokens[:n].to(torch.int32).cpu().numpy()
                    logprobs_of_chunk = output.top_logprobs[:n].float().cpu().numpy()
                    for at, i in enumerate(chunk):
                        top_tokens[i], top_logprobs[i] = of_chunk[at], logprobs_of_chunk[at]
        return ScoredRows(
            np.array([row.position for row in rows], np.int32),
            tokens,
            probabilities,
            logprobs,
            scores,
            np.concatenate([np.zeros(0, np.int32), *(top_tokens[i] for i in sorted(top_tokens))]),
            np.concatenate([np.zeros(0, np.float32), *(top_logprobs[i] for i in sorted(top_logprobs))]),
        )

    def _allowed_tokens(self, packed: list[bytes | None], count: int) -> Tensor | None:
        """What each row may choose, bool [count, V]; rows beyond `packed` may choose anything."""
        index_of = {bitmask: at for at, bitmask in enumerate(dict.fromkeys((None, *packed)))}
        if len(index_of) == 1:
            return None
        vocab_size, local_ids = self._vocab_ops.vocab_size, self._vocab_ops.local_ids
        unpacked = [unpack_bitmask(bitmask, vocab_size) for bitmask in index_of if bitmask is not None]
        table = torch.from_numpy(
            np.stack([np.ones(vocab_size, np.bool_), *unpacked])[:, local_ids.start : local_ids.stop]
        )
        index = [index_of[bitmask] for bitmask in packed] + [0] * (count - len(packed))
        return table.to(self._banned_tokens.device)[index]

    @staticmethod
    def _gather_rows(hidden_indices: list[int], hidden: Tensor, boundary: Tensor) -> Tensor:
        select = torch.tensor([max(index, 0) for index in hidden_indices], device=hidden.device)
        gathered = hidden.index_select(0, select)
        for at, index in enumerate(hidden_indices):
            if index < 0:
                gathered[at] = boundary[-1 - index]
        return gathered


def _group_by_sampling(rows: list[RowToScore]) -> list[list[int]]:
    """Indices of rows that may be scored in one call: of equal sampling parameters, and of one step if random."""
    groups: dict[tuple[SamplingParams, int], list[int]] = {}
    for index, row in enumerate(rows):
        key = (row.sampling_params, row.step if row.sampling_params.temperature > 0 else 0)
        groups.setdefault(key, []).append(index)
    return list(groups.values())
