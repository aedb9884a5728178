"""What rules with memory ask of logits: how far distributions moved from the state before, and credits for favourites.

Distributions of the state before are computed again, from the same inputs, in a lane that is not reported: so no worker
has a state that could be lost.

Shape suffixes: N rows to score, V vocabulary, E credited tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.execution.lane import Lane
from lopa_ray.protocol.scoring import ChooseTokens, Credits, Memory

EPSILON = 1e-12
"""Added to probabilities before the logarithms of divergences. This is the published value."""

NOTHING = np.zeros(0, np.int64)
NO_CREDITS = np.zeros((0, 0, 2))


def memory_of(lane: Lane) -> Memory:
    scoring = None if lane.branch is None else lane.branch.scoring
    return scoring.memory if isinstance(scoring, ChooseTokens) else None


def lanes_of_states_before(lanes: Sequence[Lane]) -> npt.NDArray[np.int64] | None:
    """The lane of each lane's state before, or -1 where there is none: int64 [lanes]; None if no lane has one."""
    if all(lane.ids_before is None for lane in lanes):
        return None
    index = {(lane.slot, lane.input_ids.tobytes()): at for at, lane in enumerate(lanes)}
    states = [-1 if (ids := lane.ids_before) is None else index[lane.slot, ids.tobytes()] for lane in lanes]
    return np.array(states, np.int64)


def credit_rows(
    lanes: Sequence[Lane], lane_of_row: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """alpha and gamma, then the tokens with a credit (padding: token 0 with 0) of each row, fp64 [rows, 1 + E, 2];
    [0, 0, 2] if no lane has credits. `lane_of_row`, `positions`: int64 [rows]."""
    of_lane = {at: memory for at, lane in enumerate(lanes) if isinstance(memory := memory_of(lane), Credits)}
    if not of_lane:
        return NO_CREDITS
    credits: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for at, memory in of_lane.items():
        for position, token, credit in memory.earned:
            credits.setdefault((at, position), [(memory.alpha, memory.gamma)]).append((token, credit))
    rows = []
    for lane, position in zip(lane_of_row.tolist(), positions.tolist(), strict=True):
        memory = of_lane.get(lane)
        own = [(memory.alpha, memory.gamma)] if memory else [(0.0, 0.0)]
        rows.append(credits.get((lane, position), own))
    table = np.zeros((len(rows), max(map(len, rows), default=1), 2))
    for row, entries in enumerate(rows):
        table[row, : len(entries)] = entries
    return table


def add_credits(
    logits: Tensor, table: Tensor, memory: Tensor, change: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """Logits [N, V] of a float dtype, after their `change`, with the credits of `credit_rows`. A row's most likely
    token before gets its credit at once; it and its log-probability are written to `memory` [N, 2]."""
    logits = logits if change is None else change(logits)
    (alpha, gamma), entries = table[:, 0].to(logits.dtype).split(1, dim=1), table[:, 1:]
    best, favourites = logits.max(-1, keepdim=True)
    logprobs = best - logits.logsumexp(-1, keepdim=True)
    memory[:] = torch.cat((favourites, logprobs), dim=1)
    credits = torch.zeros_like(logits)
    credits.scatter_add_(1, entries[:, :, 0].to(torch.int64), entries[:, :, 1].to(logits.dtype))
    credits.scatter_add_(1, favourites, (gamma * logprobs).exp())
    return logits + alpha * credits.log1p()


def divergences(logits: Tensor, before: Tensor, has_before: Tensor) -> Tensor:
    """KL(now | before) of rows of logits [N, V] of any float type, in nats: fp64 [N, 1]. Rows of `before` [N, V] that
    bool [N] does not mark count as probabilities of 0."""
    now = logits.double().softmax(-1)
    earlier = before.double().softmax(-1) * has_before[:, None]
    return (now * ((now + EPSILON).log() - (earlier + EPSILON).log())).sum(-1, keepdim=True)
