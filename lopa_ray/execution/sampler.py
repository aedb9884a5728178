"""Sampling: computes token, probability and ranking score per row of logits on the device, for any sampling parameters.

The softmax is over the full vocabulary. Forbidden tokens (the mask token, padding of the vocabulary, EOS before
`min_tokens`, and tokens that a constraint excludes) are excluded only from the choice of the token, so all
probabilities are the model's. The published decoders can choose the mask token, and then hang. Columns of rows may be
divided among shards (see `vocab_parallel.py`). Only nucleus sampling over shards has the host wait for the device.

Shape suffixes: N rows to score, V vocabulary (of a shard: its part of it), W ids that end an answer, M top tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.rows_to_score import ScoringGroup
from lopa_ray.execution.scoring_kind import COLUMN
from lopa_ray.execution.vocab_parallel import VocabOps
from lopa_ray.kernels.row_scores import EPSILON


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """The results per row. Floating numbers are fp32, or fp64 if `SamplingParams.precision` is float64."""

    tokens: Tensor
    """int64 [N]"""
    probabilities: Tensor
    logprobs: Tensor
    """[N]: log-probabilities of the tokens under the model's logits, without temperature, filters and changes."""
    scores: Tensor
    """[N]: by the ranking."""
    top_tokens: Tensor
    """int64 [N, M]: the tokens with the largest logits."""
    top_logprobs: Tensor
    """[N, M]"""


def filter_logits(
    logits: Tensor,
    top_p: Tensor | None,
    top_k: Tensor | None,
    ops: VocabOps,
    *,
    max_top_k: int = 0,
    top_k_first: bool = False,
) -> Tensor:
    """Logits [N, V] of fp32 or fp64, in which tokens outside the nucleus and the top k have the lowest finite value.

    The nucleus includes the token whose probability crosses `top_p` [N, 1], of the logits' dtype. `top_k` int64 [N, 1]
    is at most `max_top_k`. LoPA takes the nucleus first, SDAR (`top_k_first`) the top k.
    """
    lowest = torch.finfo(logits.dtype).min

    def nucleus(x: Tensor) -> Tensor:
        return x if top_p is None else x.masked_fill(ops.outside_nucleus(x, top_p), lowest)

    def best(x: Tensor) -> Tensor:
        if top_k is None:
            return x
        kth_value = ops.topk_values(x, max_top_k).gather(1, top_k - 1)
        return x.masked_fill(x < kth_value, lowest)

    return nucleus(best(logits)) if top_k_first else best(nucleus(logits))


def score_rows(
    logits: Tensor,
    numbers: Tensor,
    ending_ids: Tensor,
    group: ScoringGroup,
    banned_tokens: Tensor,
    allowed_tokens: Tensor | None,
    ops: VocabOps,
    change: Callable[[Tensor], Tensor] | None = None,
) -> SamplerOutput:
    """Score rows of logits [N, V] of any float type, in fp32 unless the group's kind has another precision.

    `numbers` fp64 [N, columns] are `RowNumbers`. `ending_ids` int64 [N, W] are ids that a row must not choose (-1:
    none). `banned_tokens` bool [V] marks ids that are never chosen. `allowed_tokens` bool [N, V], if given, marks the
    ids that each row may choose. `ops` are the operations on the columns of this shard. `change`, if given, changes the
    logits for tokens, probabilities and scores, but not for log-probabilities.
    """
    kind = group.kind
    plain = logits.to(torch.float64 if kind.precision == "float64" else torch.float32)
    logits = plain if change is None else change(plain)
    logits = logits.half().float() if kind.precision == "float16" else logits

    def number(column: int) -> Tensor:
        return numbers[:, column, None].to(logits.dtype)

    def filtered(x: Tensor) -> Tensor:
        top_p = number(COLUMN.top_p) if kind.has_top_p else None
        # Padding rows may have a top k of another group.
        top_k = (
            numbers[:, COLUMN.top_k, None].to(torch.int64).clamp(1, group.max_top_k)
            if kind.has_top_k
            else None
        )
        return filter_logits(x, top_p, top_k, ops, max_top_k=group.max_top_k, top_k_first=kind.top_k_first)

    shaped = logits / number(COLUMN.shape_temperature) if kind.has_temperature else logits
    # The most likely token is the same at any temperature. Without a temperature for draws, `shaped` is used for both.
    scaled = logits / number(COLUMN.draw_temperature) if kind.has_draw_temperature else shaped
    forbidden = _forbidden_tokens(len(logits), ending_ids, banned_tokens, allowed_tokens, ops)
    probabilities = ops.softmax(filtered(shaped))
    weights = probabilities if scaled is shaped else ops.softmax(filtered(scaled))
    weights = weights.masked_fill(forbidden, 0.0)
    # A nucleus may contain forbidden tokens only. Then the choice is among all allowed tokens, and the probability of
    # the chosen one is 0, as the nucleus gives it. The softmax is over the allowed logits only, because forbidden
    # logits can be so high that all other probabilities are 0.
    left = scaled.masked_fill(forbidden, -torch.inf)
    left = ops.softmax(left) if kind.is_sampled else left
    weights = torch.where(ops.amax(weights) <= 0.0, left, weights)

    tokens = ops.sample(weights, number(COLUMN.uniform)[:, 0]) if kind.is_sampled else ops.argmax(weights)
    chosen = ops.gather(probabilities, tokens)[:, 0]
    scores = _ranking_scores(kind.ranking, probabilities, chosen, forbidden, allowed_tokens, ops)
    normalizer = ops.logsumexp(plain)
    logprobs = ops.gather(plain, tokens) - normalizer
    top_logits, top_tokens = ops.topk(plain, kind.top_logprobs)
    return SamplerOutput(tokens, chosen, logprobs[:, 0], scores, top_tokens, top_logits - normalizer)


def score_targets(logits: Tensor, numbers: Tensor, ops: VocabOps) -> SamplerOutput:
    """The softmax probabilities, in fp32, of given tokens in rows of logits [N, V] of any float type.

    `numbers` fp64 [N, columns] are `RowNumbers`. Scores are equal to the probabilities. M is 0.
    """
    logits, tokens = logits.float(), numbers[:, COLUMN.target].to(torch.int64)
    logprobs = (ops.gather(logits, tokens) - ops.logsumexp(logits))[:, 0]
    probabilities = logprobs.exp()
    nothing = logits.new_empty(len(logits), 0)
    return SamplerOutput(tokens, probabilities, logprobs, probabilities, nothing.to(torch.int64), nothing)


def score_candidates(
    logits: Tensor, candidates: Tensor, banned_tokens: Tensor, ops: VocabOps
) -> SamplerOutput:
    """The log-probabilities, in fp32, of several tokens in rows of logits [N, V] of any float type.

    `candidates` int64 [N, M] are the tokens. The softmax is over all tokens but the `banned_tokens` [V], bool. All but
    the top tokens is about each row's first candidate; scores are probabilities.
    """
    logits = logits.float().masked_fill(banned_tokens, -torch.inf)
    logprobs = ops.gather_several(logits, candidates) - ops.logsumexp(logits)
    probabilities = logprobs[:, 0].exp()
    return SamplerOutput(candidates[:, 0], probabilities, logprobs[:, 0], probabilities, candidates, logprobs)


def _forbidden_tokens(
    rows: int, ending_ids: Tensor, banned_tokens: Tensor, allowed_tokens: Tensor | None, ops: VocabOps
) -> Tensor:
    """The tokens that each row must not choose, bool [N, V]."""
    forbidden = banned_tokens.expand(rows, -1)
    ids = torch.arange(ops.local_ids.start, ops.local_ids.stop, device=banned_tokens.device)
    for column in ending_ids.unbind(1):
        forbidden = forbidden | (ids == column[:, None])
    return forbidden if allowed_tokens is None else forbidden | ~allowed_tokens


def _ranking_scores(
    ranking: str,
    probabilities: Tensor,
    chosen: Tensor,
    forbidden: Tensor,
    allowed_tokens: Tensor | None,
    ops: VocabOps,
) -> Tensor:
    """The ranking score of each row, [N]. `chosen` [N] are the probabilities of the chosen tokens."""
    if ranking == "margin":
        best = ops.topk_values(probabilities.masked_fill(forbidden, 0.0), 2)
        return best[:, 0] - best[:, 1]
    if ranking == "probability":
        return chosen
    scores = ops.sum(probabilities * torch.log(probabilities + EPSILON))
    if allowed_tokens is None:
        return scores
    # With a constraint neg_entropy is at most ln(p + EPSILON), where p is the largest allowed probability. Otherwise a
    # high probability of a forbidden token would give a high score. Without a constraint the bound would have no effect
    # except by rounding, because it is never below neg_entropy. Such rows keep neg_entropy itself.
    left = torch.log(ops.amax(probabilities.masked_fill(~allowed_tokens, 0.0))[:, 0] + EPSILON)
    return torch.where(ops.all(allowed_tokens), scores, torch.minimum(scores, left))
