"""What rules with memory ask of logits: divergences from the state before, probabilities in shadow slots, credits; and
what a draft head goes on from.

The state before is computed again, from the same inputs, in a lane that is not reported: so no worker has a state that
could be lost.

Shape suffixes: N rows to score, V vocabulary, E credited tokens; R packed rows, H query heads, K KV heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.execution.lane import Lane
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.model.transformer import AttentionFn
from lopa_ray.protocol.scoring import ContinuationDrafts, Credits

EPSILON = 1e-12
"""Added to probabilities before the logarithms of divergences. This is the published value."""

NO_CREDITS = np.zeros((0, 0, 2))


def credit_rows(
    lanes: Sequence[Lane], lane_of_row: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """alpha and gamma, then the tokens with a credit (padding: token 0 with 0) of each row, fp64 [rows, 1 + E, 2];
    [0, 0, 2] if no lane has credits. `lane_of_row`, `positions`: int64 [rows]."""
    of_lane = {at: memory for at, lane in enumerate(lanes) if isinstance(memory := lane.memory, Credits)}
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
    token before gets its credit at once; it and its log-probability are written to `memory` [N, 2 or more]."""
    logits = logits if change is None else change(logits)
    (alpha, gamma), entries = table[:, 0].to(logits.dtype).split(1, dim=1), table[:, 1:]
    best, favourites = logits.max(-1, keepdim=True)
    logprobs = best - logits.logsumexp(-1, keepdim=True)
    memory[:, :2] = torch.cat((favourites, logprobs), dim=1)
    credits = torch.zeros_like(logits)
    credits.scatter_add_(1, entries[:, :, 0].to(torch.int64), entries[:, :, 1].to(logits.dtype))
    credits.scatter_add_(1, favourites, (gamma * logprobs).exp())
    raised: Tensor = logits + alpha * credits.log1p()
    return raised


def wanted_drafts(lanes: Sequence[Lane]) -> ContinuationDrafts | None:
    """What a step asks of the draft head: as much as any of its lanes; None if none does."""
    asked = [lane.memory for lane in lanes if isinstance(lane.memory, ContinuationDrafts)]
    if not asked:
        return None
    return ContinuationDrafts(max(one.beams for one in asked), max(one.depth for one in asked))


def guess_rows(
    lanes: Sequence[Lane], rows_of_lane: Callable[[int], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """`StepColumns.guesses`, int64 [branches, G + 1, 2]. `rows_of_lane`: the scored rows of a lane, int64 [rows]."""
    drafting = [
        (rows_of_lane(at), [token for position, token in lane.fills if position in lane.scored])
        for at, lane in enumerate(lanes)
        if isinstance(lane.memory, ContinuationDrafts)
    ]
    table = np.full((len(drafting), max((len(rows) for rows, _ in drafting), default=0), 2), -1, np.int64)
    for of_branch, (rows, guess) in zip(table, drafting, strict=True):
        of_branch[:, 0] = rows[-1]
        of_branch[: len(rows), 0] = rows
        of_branch[: len(guess), 1] = guess
    return table


def divergences(logits: Tensor, before: Tensor, has_before: Tensor) -> Tensor:
    """KL(now | before) of rows of logits [N, V] of any float type, in nats: fp64 [N, 1]. Rows of `before` [N, V] that
    bool [N] does not mark count as probabilities of 0."""
    now = logits.double().softmax(-1)
    earlier = before.double().softmax(-1) * has_before[:, None]
    return (now * ((now + EPSILON).log() - (earlier + EPSILON).log())).sum(-1, keepdim=True)


def verify_drafts(logits: Tensor, drafted: Tensor, tokens: Tensor, banned: Tensor) -> Tensor:
    """Of rows of logits [N, V] of any float type: the probabilities of drafted `tokens` int64 [N, 1], and the token to
    which they give most beyond what the drafting logits `drafted` [N, V] do, or the most likely one where that is
    nothing, with its probability: fp64 [N, 3]. `banned` bool [V] tokens are no such tokens."""
    now = logits.double().softmax(-1)
    more = (now - drafted.double().softmax(-1)).clamp_min(0).masked_fill(banned, 0.0)
    more = torch.where(more.amax(-1, keepdim=True) > 0, more, now.masked_fill(banned, 0.0))
    others = more.argmax(-1, keepdim=True)
    return torch.cat((now.gather(1, tokens), others.double(), now.gather(1, others)), dim=1)


def attend_in_shadow_slots(
    attend: AttentionFn, lanes: Sequence[Lane], first_rows: Sequence[int]
) -> AttentionFn:
    """`attend`, and in its place what rows of shadow slots see. Lane i begins at row `first_rows[i]`; their branches
    have nothing cached."""
    slots = [at for at, lane in enumerate(lanes) if lane.hides is not None]
    if not slots:
        return attend

    def attend_with_slots(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = attend(layer, q, k, v)
        for at in slots:
            lane, hides = lanes[at], lanes[at].hides or 0
            own, of_branch = (slice(first_rows[i], first_rows[i + 1]) for i in (at, at + lane.beside))
            keys, values = (torch.cat((x[of_branch], x[own])).transpose(0, 1) for x in (k, v))
            hidden = torch.arange(lane.start + hides, lane.stop + hides, device=q.device)
            sees = torch.arange(keys.shape[1], device=q.device) != hidden[:, None]
            mixed[own] = sdpa(q[own], keys, values, mask=sees)
        return mixed

    return attend_with_slots
