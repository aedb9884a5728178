"""Logits → token, probability and ranking score per position, on the device, whatever the sampling parameters.

The softmax is over the full vocabulary; what may never be generated (the mask token,
padded-vocabulary ids, EOS before `min_tokens`, what a constraint rules out) is excluded from
the choice of the token alone, so probabilities of all other tokens stay what the model gave them. The published
decoders can choose the mask token and then hang.

Rows may be spread over the shards of a model: then all of them score together (see `vocab_parallel.py`). Nothing here
has the host wait for the device, but for a nucleus over shards.

Shape suffixes: N rows to score, V vocabulary (of a shard: its part of it), W ids that end an answer, M top tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.rows_to_score import ScoringGroup
from lopa_ray.execution.scoring_kind import DRAW_TEMPERATURE, SHAPE_TEMPERATURE, TARGET, TOP_K, TOP_P, UNIFORM
from lopa_ray.execution.vocab_parallel import VocabOps
from lopa_ray.kernels.row_scores import EPSILON


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """Per row: token int64 [N], its probability, plain log-probability and score [N]; top tokens int64 and
    their log-probabilities [N, M]. Numbers are fp32, or fp64 where `SamplingParams.precision` says so."""

    tokens: Tensor
    probabilities: Tensor
    logprobs: Tensor
    scores: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor


def filter_logits(
    logits: Tensor,
    top_p: Tensor | None,
    top_k: Tensor | None,
    ops: VocabOps,
    *,
    max_top_k: int = 0,
    top_k_first: bool = False,
) -> Tensor:
    """Logits [N, V] with everything outside the nucleus, then outside the top k, at the lowest finite value.

    `top_p` [N, 1] in the dtype of the logits; the nucleus keeps the token that crosses it. `top_k` int64 [N, 1] is
    `max_top_k` at most. Order and renormalisation are LoPA's, or, with `top_k_first`, SDAR's.
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
    """Score rows of logits [N, V] (any float type; computed in fp32, unless the group's kind says otherwise).

    `numbers` fp64 [N, 9] are those of `ScoringKind`; `ending_ids` int64 [N, W] are ids that a row must not choose
    (-1: none). `banned_tokens` bool [V] marks ids that are never chosen, and `allowed_tokens` bool [N, V], if given,
    what each row may choose. `ops` says which columns of the vocabulary these are. `change`, if given, makes the logits
    that tokens, probabilities and scores are of; log-probabilities are of the logits without it.
    """
    kind = group.kind
    plain = logits.to(torch.float64 if kind.precision == "float64" else torch.float32)
    logits = plain if change is None else change(plain)
    logits = logits.half().float() if kind.precision == "float16" else logits

    def number(column: int) -> Tensor:
        return numbers[:, column, None].to(logits.dtype)

    def filtered(x: Tensor) -> Tensor:
        top_p = number(TOP_P) if kind.has_top_p else None
        # Rows of padding may have the number of another group.
        top_k = numbers[:, TOP_K, None].to(torch.int64).clamp(1, group.max_top_k) if kind.has_top_k else None
        return filter_logits(x, top_p, top_k, ops, max_top_k=group.max_top_k, top_k_first=kind.top_k_first)

    shaped = logits / number(SHAPE_TEMPERATURE) if kind.has_temperature else logits
    # The most likely token is the same at any temperature, so one that only shapes confidences will do.
    scaled = logits / number(DRAW_TEMPERATURE) if kind.has_draw_temperature else shaped
    forbidden = _forbidden_tokens(len(logits), ending_ids, banned_tokens, allowed_tokens, ops)
    probabilities = ops.softmax(filtered(shaped))
    weights = probabilities if scaled is shaped else ops.softmax(filtered(scaled))
    weights = weights.masked_fill(forbidden, 0.0)
    # A nucleus may hold nothing but forbidden tokens: then the choice is among all allowed
    # ones, with the probability 0 that the nucleus gives them. Softmax without the forbidden
    # logits, since theirs can be so high that every other probability vanishes.
    left = scaled.masked_fill(forbidden, -torch.inf)
    left = ops.softmax(left) if kind.is_sampled else left
    weights = torch.where(ops.amax(weights) <= 0.0, left, weights)

    tokens = ops.sample(weights, number(UNIFORM)[:, 0]) if kind.is_sampled else ops.argmax(weights)
    chosen = ops.gather(probabilities, tokens)[:, 0]
    scores = _ranking_scores(kind.ranking, probabilities, chosen, forbidden, allowed_tokens, ops)
    normalizer = ops.logsumexp(plain)
    logprobs = ops.gather(plain, tokens) - normalizer
    top_logits, top_tokens = ops.topk(plain, kind.top_logprobs)
    return SamplerOutput(tokens, chosen, logprobs[:, 0], scores, top_tokens, top_logits - normalizer)


def score_targets(logits: Tensor, numbers: Tensor, ops: VocabOps) -> SamplerOutput:
    """The plain softmax's probabilities of given tokens, in fp32, of rows of logits [N, V] of any float type.

    `numbers` fp64 [N, 9] are those of `ScoringKind`. Scores are the probabilities; no top tokens are listed.
    """
    logits, tokens = logits.float(), numbers[:, TARGET].to(torch.int64)
    logprobs = (ops.gather(logits, tokens) - ops.logsumexp(logits))[:, 0]
    probabilities = logprobs.exp()
    nothing = logits.new_empty(len(logits), 0)
    return SamplerOutput(tokens, probabilities, logprobs, probabilities, nothing.to(torch.int64), nothing)


def _forbidden_tokens(
    rows: int, ending_ids: Tensor, banned_tokens: Tensor, allowed_tokens: Tensor | None, ops: VocabOps
) -> Tensor:
    """What each row must not choose, bool [N, V]."""
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
    """The score [N] of each row by the ranking; `chosen` [N]: probabilities of the chosen tokens."""
    if ranking == "margin":
        best = ops.topk_values(probabilities.masked_fill(forbidden, 0.0), 2)
        return best[:, 0] - best[:, 1]
    if ranking == "probability":
        return chosen
    scores = ops.sum(probabilities * torch.log(probabilities + EPSILON))
    if allowed_tokens is None:
        return scores
    # To be sure of what is ruled out is not to be sure of what is left. (The likeliest token's logarithm
    # is no less than this sum, but for rounding: so rows without a constraint keep their bits.)
    left = torch.log(ops.amax(probabilities.masked_fill(~allowed_tokens, 0.0))[:, 0] + EPSILON)
    return torch.where(ops.all(allowed_tokens), scores, torch.minimum(scores, left))
