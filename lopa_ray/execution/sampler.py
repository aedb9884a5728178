"""Sampling: computes token, probability and ranking score per row of logits on the device, for any sampling parameters.

The softmax is over the full vocabulary. Forbidden tokens (the mask token, padding, EOS before `min_tokens`, what a
constraint excludes) are excluded only from the choice of the token, so all probabilities are the model's. The published
decoders can choose the mask token, and then hang.

Shape suffixes: N rows to score, V vocabulary, W ids that end an answer, K best tokens, M top tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.rows_to_score import ScoringGroup
from lopa_ray.execution.scoring_kind import COLUMN
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
    draws: Tensor | None = None
    """[N, 2]: log-probability and entropy of each token's `Draw`, if they are requested."""


def filter_logits(
    logits: Tensor,
    top_p: Tensor | None,
    top_k: Tensor | None,
    *,
    max_top_k: int = 0,
    top_k_first: bool = False,
) -> Tensor:
    """Logits [N, V] of fp32 or fp64, in which tokens outside the nucleus and the top k have the lowest finite value.
    The nucleus includes the token whose probability crosses `top_p` [N, 1], of the logits' dtype. `top_k` int64 [N, 1]
    is at most `max_top_k`. LoPA takes the nucleus first, SDAR (`top_k_first`) the top k."""
    for takes_top_k in (top_k_first, not top_k_first):
        if takes_top_k and top_k is not None:
            outside = logits < logits.topk(max_top_k, dim=-1).values.gather(1, top_k - 1)
        elif not takes_top_k and top_p is not None:
            outside = outside_nucleus(logits, top_p)
        else:
            continue
        logits = logits.masked_fill(outside, torch.finfo(logits.dtype).min)
    return logits


def outside_nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """Tokens outside the nucleus. It has the most likely tokens up to the token with which their total probability
    exceeds `top_p` [N, 1]: logits [N, V] → bool [N, V]."""
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    before = ordered.softmax(-1).cumsum(-1)
    outside = torch.zeros_like(before, dtype=torch.bool)
    outside[:, 1:] = before[:, :-1] > top_p
    return torch.zeros_like(outside).scatter(1, index, outside)


def sample(weights: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF sampling: `weights` [N, V] ≥ 0 (not all 0), `uniform` [N, 1] in [0, 1) → ids int64 [N]. Rounding can
    move a draw beyond the last token or, with a parallel cumulative sum, to a token of weight 0. Then the token with
    the largest weight is taken."""
    cumulative = weights.cumsum(-1)
    target = uniform * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, target, right=True).clamp_max(weights.shape[-1] - 1)
    heaviest = weights.argmax(-1, keepdim=True)
    return torch.where(weights.gather(1, drawn) > 0, drawn, heaviest)[:, 0]


def stable_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row of x [N, V] in descending order, [N, K] in the dtype of x, and their ids, int64
    [N, K]. Equal values are in order of ids, which torch.topk does not promise."""
    values = x.topk(k, dim=-1).values
    if k == 0:
        return values, torch.empty_like(values, dtype=torch.int64)
    least = values[:, -1:]
    above, equal = x > least, x == least
    room = k - above.sum(-1, keepdim=True)
    taken = above | (equal & (equal.cumsum(-1) <= room))
    columns = torch.arange(x.shape[-1], device=x.device)
    # Ids are ascending, so a stable sort by value keeps equal values in order of ids. For rows with NaN no column is
    # taken, and all ids are `last`.
    last = x.shape[-1] - 1
    ids = torch.where(taken, columns, last).topk(k, dim=-1, largest=False, sorted=True).values
    order = x.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return values, ids.gather(1, order)


def score_rows(
    logits: Tensor,
    numbers: Tensor,
    ending_ids: Tensor,
    group: ScoringGroup,
    banned_tokens: Tensor,
    allowed_tokens: Tensor | None,
    change: Callable[[Tensor], Tensor] | None = None,
) -> SamplerOutput:
    """Score rows of logits [N, V] of any float type, in fp32 unless the group's kind has another precision. `numbers`
    fp64 [N, columns] are `RowNumbers`. `ending_ids` int64 [N, W] are ids that a row must not choose (-1: none).
    `banned_tokens` bool [V] marks ids that are never chosen. `allowed_tokens` bool [N, V], if given, marks the ids that
    each row may choose. `change`, if given, changes the logits for tokens, probabilities and scores, but not for
    log-probabilities."""
    kind = group.kind
    plain = logits.to(torch.float64 if kind.precision == "float64" else torch.float32)
    logits = plain if change is None else change(plain)
    logits = logits.half().float() if kind.precision == "float16" else logits

    def number(column: int) -> Tensor:
        return numbers[:, column, None].to(logits.dtype)

    def filtered(x: Tensor) -> Tensor:
        top_p = number(COLUMN.top_p) if kind.has_top_p else None
        most, top_k = group.max_top_k, None
        if kind.has_top_k:  # padding rows may have a top k of another group
            top_k = numbers[:, COLUMN.top_k, None].to(torch.int64).clamp(1, most)
        return filter_logits(x, top_p, top_k, max_top_k=most, top_k_first=kind.top_k_first)

    shaped = logits / number(COLUMN.shape_temperature) if kind.has_temperature else logits
    # The most likely token is the same at any temperature. Without a temperature for draws, `shaped` is used for both.
    scaled = logits / number(COLUMN.draw_temperature) if kind.has_draw_temperature else shaped
    forbidden = _forbidden_tokens(len(logits), ending_ids, banned_tokens, allowed_tokens)
    probabilities = filtered(shaped).softmax(-1)
    weights = probabilities if scaled is shaped else filtered(scaled).softmax(-1)
    weights = weights.masked_fill(forbidden, 0.0)
    # A nucleus may contain forbidden tokens only. Then the choice is among all allowed tokens, and the probability of
    # the chosen one is 0, as the nucleus gives it. The softmax is over the allowed logits only, because forbidden
    # logits can be so high that all other probabilities are 0.
    left = scaled.masked_fill(forbidden, -torch.inf)
    left = left.softmax(-1) if kind.is_sampled else left
    weights = torch.where(weights.amax(-1, keepdim=True) <= 0.0, left, weights)

    tokens = sample(weights, number(COLUMN.uniform)) if kind.is_sampled else weights.argmax(-1)
    chosen = probabilities.gather(1, tokens[:, None])[:, 0]
    scores = _ranking_scores(kind.ranking, probabilities, chosen, forbidden, allowed_tokens)
    normalizer = plain.logsumexp(-1, keepdim=True)
    logprobs = plain.gather(1, tokens[:, None]) - normalizer
    top_logits, top_tokens = stable_topk(plain, kind.top_logprobs)
    draws = None
    if kind.draws:
        at_temperature = logits / number(COLUMN.draw_temperature)
        draws = _draws(at_temperature, filtered(at_temperature), forbidden, tokens)
    return SamplerOutput(tokens, chosen, logprobs[:, 0], scores, top_tokens, top_logits - normalizer, draws)


def score_targets(logits: Tensor, numbers: Tensor) -> SamplerOutput:
    """The softmax probabilities, in fp32, of given tokens in rows of logits [N, V] of any float type. `numbers` fp64
    [N, columns] are `RowNumbers`. Scores are equal to the probabilities. M is 0."""
    logits, tokens = logits.float(), numbers[:, COLUMN.target].to(torch.int64)
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    probabilities = logprobs.exp()
    nothing = logits.new_empty(len(logits), 0)
    return SamplerOutput(tokens, probabilities, logprobs, probabilities, nothing.to(torch.int64), nothing)


def score_candidates(logits: Tensor, candidates: Tensor, banned_tokens: Tensor) -> SamplerOutput:
    """The log-probabilities, in fp32, of several tokens in rows of logits [N, V] of any float type. `candidates` int64
    [N, M] are the tokens. The softmax is over all tokens but the `banned_tokens` [V], bool. All but the top tokens is
    about each row's first candidate; scores are probabilities."""
    logits = logits.float().masked_fill(banned_tokens, -torch.inf)
    logprobs = logits.gather(1, candidates) - logits.logsumexp(-1, keepdim=True)
    probabilities = logprobs[:, 0].exp()
    return SamplerOutput(candidates[:, 0], probabilities, logprobs[:, 0], probabilities, candidates, logprobs)


def _draws(logits: Tensor, filtered: Tensor, forbidden: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of `tokens` [N] under the distributions that they are drawn from, and their entropies: [N, 2].
    These have the `filtered` logits [N, V], or all where filters leave `forbidden` tokens alone."""
    is_empty = filtered.softmax(-1).masked_fill(forbidden, 0.0).amax(-1, keepdim=True) <= 0.0
    logprobs = torch.where(is_empty, logits, filtered).masked_fill(forbidden, -torch.inf).log_softmax(-1)
    entropies = torch.special.entr(logprobs.exp()).sum(-1)
    return torch.stack((logprobs.gather(1, tokens[:, None])[:, 0], entropies), dim=1)


def _forbidden_tokens(
    rows: int, ending_ids: Tensor, banned_tokens: Tensor, allowed_tokens: Tensor | None
) -> Tensor:
    forbidden = banned_tokens.expand(rows, -1)
    ids = torch.arange(len(banned_tokens), device=banned_tokens.device)
    for column in ending_ids.unbind(1):
        forbidden = forbidden | (ids == column[:, None])
    return forbidden if allowed_tokens is None else forbidden | ~allowed_tokens


def _ranking_scores(
    ranking: str, probabilities: Tensor, chosen: Tensor, forbidden: Tensor, allowed_tokens: Tensor | None
) -> Tensor:
    if ranking == "margin":
        best = probabilities.masked_fill(forbidden, 0.0).topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]
    if ranking == "probability":
        return chosen
    scores = (probabilities * torch.log(probabilities + EPSILON)).sum(-1)
    if allowed_tokens is None:
        return scores
    # With a constraint neg_entropy is at most ln(p + EPSILON), where p is the largest allowed probability. Otherwise a
    # high probability of a forbidden token would give a high score. Without a constraint the bound would have no effect
    # except by rounding, because it is never below neg_entropy. Such rows keep neg_entropy itself.
    left = torch.log(probabilities.masked_fill(~allowed_tokens, 0.0).amax(-1) + EPSILON)
    return torch.where(allowed_tokens.all(-1), scores, torch.minimum(scores, left))
