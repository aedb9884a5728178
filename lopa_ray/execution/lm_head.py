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
from lopa_ray.execution.vocab_parallel import vocabulary_axis
from lopa_ray.model.transformer import Transformer
from lopa_ray.protocol.report import BranchReport
from lopa_ray.protocol.sampling_params import SamplingParams

ROW_MULTIPLE = 16
"""On CPU a row of a matmul has the same bits whatever the other rows are, as long as every thread gets 4
rows or more; with this multiple that was seen with 1 and 2 threads."""

MAX_HEAD_ROWS = 512
"""Rows per LM head call, which bounds the memory of logits over a large vocabulary."""


@dataclass(frozen=True, slots=True)
class Row:
    """One position to score, and the hidden row that decides it."""

    source: int
    """Row of the forward, or -1 - slot for a slot's boundary row."""
    position: int
    step: int
    sampling: SamplingParams
    bitmask: bytes | None = None
    """Tokens that it may get, packed; None: any."""


@dataclass(frozen=True, slots=True)
class HostScores:
    """Scores of many rows, on the host; see `BranchReport` for shapes and types."""

    positions: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    logprobs: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float64]
    tops: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]
    """Per row its top tokens and their log-probabilities: requests may ask for different numbers."""

    def report(self, epoch: int, step: int, branch: int, rows: slice) -> BranchReport:
        """The rows of one branch as its report."""
        tops = self.tops[rows]
        return BranchReport(
            epoch=epoch,
            step=step,
            branch=branch,
            positions=self.positions[rows],
            tokens=self.tokens[rows],
            probabilities=self.probabilities[rows],
            logprobs=self.logprobs[rows],
            scores=self.scores[rows],
            top_tokens=np.stack([t for t, _ in tops]) if tops else np.zeros((0, 0), np.int32),
            top_logprobs=np.stack([p for _, p in tops]) if tops else np.zeros((0, 0), np.float32),
        )


def padded_rows(rows: int) -> int:
    """How many rows a matmul should have so that its bits do not depend on their number."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


class Head:
    """LM head and scoring of one model."""

    def __init__(self, model: Transformer, choosable: int | None) -> None:
        """Ids from `choosable` on (vocabulary padding) and the mask token are never chosen."""
        config = model.config
        self._linear = model.lm_head
        self._eos = config.eos_token_id
        self._axis = vocabulary_axis(config.vocab_size, model.tp_group)
        banned = torch.zeros(config.vocab_size, dtype=torch.bool, device=model.lm_head.weight.device)
        banned[config.mask_token_id] = True
        banned[config.vocab_size if choosable is None else choosable :] = True
        self._banned = banned[self._axis.own.start : self._axis.own.stop]

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden rows [N, D] → logits fp32 [N padded, V]; rows beyond N are padding."""
        missing = padded_rows(hidden.shape[0]) - hidden.shape[0]
        if missing > 0:
            hidden = torch.cat((hidden, hidden.new_zeros(missing, hidden.shape[1])))
        logits: Tensor = self._linear(hidden)
        return logits.float()

    def whole_logits(self, hidden: Tensor) -> Tensor:
        """The same over the whole vocabulary, wherever its parts are."""
        return self._axis.whole(self.logits(hidden))

    def score(self, rows: list[Row], hidden: Tensor, boundary: Tensor) -> HostScores:
        """Score rows from hidden [R, D] and boundary [S, D]; rows that sample alike go together."""
        count = len(rows)
        tokens = np.zeros(count, np.int32)
        probabilities = np.zeros(count, np.float64)
        logprobs = np.zeros(count, np.float32)
        scores = np.zeros(count, np.float64)
        tops: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = [
            (np.zeros(0, np.int32), np.zeros(0, np.float32))
        ] * count
        for members in _alike(rows):
            for first in range(0, len(members), MAX_HEAD_ROWS):
                chunk = members[first : first + MAX_HEAD_ROWS]
                picked = self._pick([rows[i].source for i in chunk], hidden, boundary)
                positions = [rows[i].position for i in chunk]
                positions += [0] * (padded_rows(len(chunk)) - len(chunk))
                row = rows[chunk[0]]
                found = score_rows(
                    self.logits(picked),
                    positions,
                    row.step,
                    row.sampling,
                    self._banned,
                    self._eos,
                    self._allowed_tokens([rows[i].bitmask for i in chunk], len(positions)),
                    self._axis,
                )
                n = len(chunk)
                tokens[chunk] = found.tokens[:n].cpu().numpy()
                probabilities[chunk] = found.probabilities[:n].cpu().numpy()
                logprobs[chunk] = found.logprobs[:n].cpu().numpy()
                scores[chunk] = found.scores[:n].cpu().numpy()
                if row.sampling.top_logprobs:
                    top_tokens = found.top_tokens[:n].to(torch.int32).cpu().numpy()
                    top_logprobs = found.top_logprobs[:n].float().cpu().numpy()
                    for at, i in enumerate(chunk):
                        tops[i] = (top_tokens[at], top_logprobs[at])
        return HostScores(
            np.array([row.position for row in rows], np.int32), tokens, probabilities, logprobs, scores, tops
        )

    def _allowed_tokens(self, packed: list[bytes | None], count: int) -> Tensor | None:
        """What each row may choose, bool [count, V]; rows beyond `packed` may choose anything."""
        index_of = {bitmask: at for at, bitmask in enumerate(dict.fromkeys((None, *packed)))}
        if len(index_of) == 1:
            return None
        size, own = self._axis.size, self._axis.own
        unpacked = [unpack_bitmask(bitmask, size) for bitmask in index_of if bitmask is not None]
        table = torch.from_numpy(np.stack([np.ones(size, np.bool_), *unpacked])[:, own.start : own.stop])
        index = [index_of[bitmask] for bitmask in packed] + [0] * (count - len(packed))
        return table.to(self._banned.device)[index]

    @staticmethod
    def _pick(sources: list[int], hidden: Tensor, boundary: Tensor) -> Tensor:
        index = torch.tensor([max(source, 0) for source in sources], device=hidden.device)
        picked = hidden.index_select(0, index)
        for at, source in enumerate(sources):
            if source < 0:
                picked[at] = boundary[-1 - source]
        return picked


def _alike(rows: list[Row]) -> list[list[int]]:
    """Indices of rows that may be scored in one call: same sampling, and same step where tokens are drawn."""
    groups: dict[tuple[SamplingParams, int], list[int]] = {}
    for index, row in enumerate(rows):
        key = (row.sampling, row.step if row.sampling.temperature > 0 else 0)
        groups.setdefault(key, []).append(index)
    return list(groups.values())
