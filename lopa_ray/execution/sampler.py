"""Logits → token, probability and ranking score per position, on the device.

The softmax is over the full vocabulary; what may never be generated (the mask token,
padded-vocabulary ids, EOS before `min_tokens`, what a constraint rules out) is excluded from
the choice of the token alone, so probabilities of all other tokens stay what the model gave them. The published
decoders can choose the mask token and then hang.

Rows may be spread over the shards of a model: then all of them score together (see `vocab_parallel.py`).

Shape suffixes: N rows to score, V vocabulary (of a shard: its part of it), M top tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.vocab_parallel import VocabOps
from lopa_ray.protocol.keyed_random import keyed_uniform
from lopa_ray.protocol.sampling_params import SamplingParams

EPSILON = 1e-10
"""Keeps the logarithm of neg_entropy finite; the published value."""

MIN_TEMPERATURE = 1e-6
"""Lower temperatures act like this one, so that the division stays finite in fp32."""


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
    top_p: float | None,
    top_k: int | None,
    ops: VocabOps,
    *,
    top_k_first: bool = False,
) -> Tensor:
    """Logits [N, V] with everything outside the nucleus, then outside the top k, at the lowest finite value.

    The nucleus keeps the token that crosses `top_p`. Order and renormalisation are LoPA's, or, with
    `top_k_first`, SDAR's.
    """
    if top_k_first:
        return filter_logits(filter_logits(logits, None, top_k, ops), top_p, None, ops)
    lowest = torch.finfo(logits.dtype).min
    if top_p is not None and top_p < 1.0:
        logits = logits.masked_fill(ops.outside_nucleus(logits, top_p), lowest)
    if top_k is not None and top_k < ops.vocab_size:
        kth_value = ops.topk_values(logits, top_k)[:, -1:]
        logits = logits.masked_fill(logits < kth_value, lowest)
    return logits


def score_rows(
    logits: Tensor,
    positions: list[int],
    step: int,
    sampling_params: SamplingParams,
    banned_tokens: Tensor,
    eos_token_id: int,
    allowed_tokens: Tensor | None,
    ops: VocabOps,
) -> SamplerOutput:
    """Score rows of logits [N, V] (any float type; computed in fp32, unless `sampling_params` says otherwise).

    `positions` are the absolute positions that the rows decide; `banned_tokens` bool [V] marks ids
    that are never chosen, and `allowed_tokens` bool [N, V], if given, what each row may choose. `ops` says which
    columns of the vocabulary these are.
    """
    plain = logits.to(torch.float64 if sampling_params.precision == "float64" else torch.float32)
    logits = plain.half().float() if sampling_params.precision == "float16" else plain
    do_sample = sampling_params.temperature > 0
    scaled = logits / max(sampling_params.temperature, MIN_TEMPERATURE) if do_sample else logits
    # The most likely token is the same at any temperature, so one that only shapes confidences will do.
    temperature = sampling_params.confidence_temperature
    shaped = scaled if temperature is None else logits / max(temperature, MIN_TEMPERATURE)
    if not do_sample:
        scaled = shaped
    # Before anything that shards do together: a copy from the host would wait for it, whatever became of a peer.
    forbidden = _forbidden_tokens(
        positions, sampling_params, banned_tokens, eos_token_id, allowed_tokens, ops
    )
    draws = [keyed_uniform(sampling_params.seed, step, p) for p in positions] if do_sample else []
    uniform = torch.tensor(draws, dtype=logits.dtype, device=logits.device)

    probabilities = ops.softmax(_filtered(shaped, sampling_params, ops))
    weights = probabilities if scaled is shaped else ops.softmax(_filtered(scaled, sampling_params, ops))
    weights = weights.masked_fill(forbidden, 0.0)
    # A nucleus may hold nothing but forbidden tokens: then the choice is among all allowed
    # ones, with the probability 0 that the nucleus gives them. Softmax without the forbidden
    # logits, since theirs can be so high that every other probability vanishes.
    empty = ops.amax(weights) <= 0.0
    if ops.any_row(empty):
        weights = torch.where(empty, ops.softmax(scaled.masked_fill(forbidden, -torch.inf)), weights)

    tokens = ops.sample(weights, uniform) if do_sample else ops.argmax(weights)
    chosen = ops.gather(probabilities, tokens)[:, 0]
    scores = _ranking_scores(sampling_params, probabilities, chosen, forbidden, allowed_tokens, ops)
    normalizer = ops.logsumexp(plain)
    logprobs = ops.gather(plain, tokens) - normalizer
    top_logits, top_tokens = ops.topk(plain, sampling_params.top_logprobs)
    return SamplerOutput(tokens, chosen, logprobs[:, 0], scores, top_tokens, top_logits - normalizer)


def _filtered(logits: Tensor, sampling_params: SamplingParams, ops: VocabOps) -> Tensor:
    top_p, top_k = sampling_params.top_p, sampling_params.top_k
    return filter_logits(logits, top_p, top_k, ops, top_k_first=sampling_params.top_k_first)


def _forbidden_tokens(
    positions: list[int],
    sampling_params: SamplingParams,
    banned_tokens: Tensor,
    eos_token_id: int,
    allowed_tokens: Tensor | None,
    ops: VocabOps,
) -> Tensor:
    """What each row must not choose, bool [N, V]."""
    forbidden = banned_tokens.expand(len(positions), -1)
    too_early = torch.tensor([p < sampling_params.no_eos_before for p in positions], dtype=torch.bool)
    if bool(too_early.any()):
        forbidden = forbidden.clone()
        for token in {eos_token_id, *sampling_params.stop_token_ids}.intersection(ops.local_ids):
            forbidden[:, token - ops.local_ids.start] |= too_early.to(forbidden.device)
    return forbidden if allowed_tokens is None else forbidden | ~allowed_tokens


def _ranking_scores(
    sampling_params: SamplingParams,
    probabilities: Tensor,
    chosen: Tensor,
    forbidden: Tensor,
    allowed_tokens: Tensor | None,
    ops: VocabOps,
) -> Tensor:
    """The score [N] of each row by the ranking; `chosen` [N]: probabilities of the chosen tokens."""
    if sampling_params.ranking == "margin":
        best = ops.topk_values(probabilities.masked_fill(forbidden, 0.0), 2)
        return best[:, 0] - best[:, 1]
    if sampling_params.ranking == "probability":
        return chosen
    scores = ops.sum(probabilities * torch.log(probabilities + EPSILON))
    if allowed_tokens is None:
        return scores
    # To be sure of what is ruled out is not to be sure of what is left. (The likeliest token's logarithm
    # is no less than this sum, but for rounding: so rows without a constraint keep their bits.)
    left = torch.log(ops.amax(probabilities.masked_fill(~allowed_tokens, 0.0))[:, 0] + EPSILON)
    return torch.where(ops.all(allowed_tokens), scores, torch.minimum(scores, left))
