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

from lopa_ray.execution.vocab_parallel import VocabularyAxis
from lopa_ray.protocol.keyed_random import keyed_uniform
from lopa_ray.protocol.sampling_params import SamplingParams

EPSILON = 1e-10
"""Keeps the logarithm of neg_entropy finite; the published value."""

MIN_TEMPERATURE = 1e-6
"""Lower temperatures act like this one, so that the division stays finite in fp32."""


@dataclass(frozen=True, slots=True)
class Scores:
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
    axis: VocabularyAxis,
    *,
    top_k_first: bool = False,
) -> Tensor:
    """Logits [N, V] with everything outside the nucleus, then outside the top k, at the lowest finite value.

    The nucleus keeps the token that crosses `top_p`. Order and renormalisation are LoPA's, or, with
    `top_k_first`, SDAR's.
    """
    if top_k_first:
        return filter_logits(filter_logits(logits, None, top_k, axis), top_p, None, axis)
    lowest = torch.finfo(logits.dtype).min
    if top_p is not None and top_p < 1.0:
        logits = logits.masked_fill(axis.outside_nucleus(logits, top_p), lowest)
    if top_k is not None and top_k < axis.size:
        least = axis.largest(logits, top_k)[:, -1:]
        logits = logits.masked_fill(logits < least, lowest)
    return logits


def score_rows(
    logits: Tensor,
    positions: list[int],
    step: int,
    sampling: SamplingParams,
    banned: Tensor,
    eos_token_id: int,
    allowed_tokens: Tensor | None,
    axis: VocabularyAxis,
) -> Scores:
    """Score rows of logits [N, V] (any float type; computed in fp32, unless `sampling` says otherwise).

    `positions` are the absolute positions that the rows decide; `banned` bool [V] marks ids
    that are never chosen, and `allowed_tokens` bool [N, V], if given, what each row may choose. `axis` says which
    columns of the vocabulary these are.
    """
    plain = logits.to(torch.float64 if sampling.precision == "float64" else torch.float32)
    logits = plain.half().float() if sampling.precision == "float16" else plain
    drawn = sampling.temperature > 0
    scaled = logits / max(sampling.temperature, MIN_TEMPERATURE) if drawn else logits
    # The most likely token is the same at any temperature, so one that only shapes confidences will do.
    shape = sampling.confidence_temperature
    shaped = scaled if shape is None else logits / max(shape, MIN_TEMPERATURE)
    if not drawn:
        scaled = shaped
    probabilities = axis.softmax(_filtered(shaped, sampling, axis))

    forbidden = banned.expand_as(probabilities)
    early = torch.tensor([p < sampling.no_eos_before for p in positions], dtype=torch.bool)
    if bool(early.any()):
        forbidden = forbidden.clone()
        for token in {eos_token_id, *sampling.stop_token_ids}.intersection(axis.own):
            forbidden[:, token - axis.own.start] |= early.to(forbidden.device)
    if allowed_tokens is not None:
        forbidden = forbidden | ~allowed_tokens
    chances = probabilities if scaled is shaped else axis.softmax(_filtered(scaled, sampling, axis))
    allowed = chances.masked_fill(forbidden, 0.0)
    # A nucleus may hold nothing but forbidden tokens: then the choice is among all allowed
    # ones, with the probability 0 that the nucleus gives them. Softmax without the forbidden
    # logits, since theirs can be so high that every other probability vanishes.
    empty = axis.amax(allowed) <= 0.0
    weights = allowed
    if bool(empty.any()):
        weights = torch.where(empty, axis.softmax(scaled.masked_fill(forbidden, -torch.inf)), allowed)

    if drawn:
        draws = [keyed_uniform(sampling.seed, step, p) for p in positions]
        tokens = axis.draw(weights, torch.tensor(draws, dtype=logits.dtype, device=logits.device))
    else:
        tokens = axis.argmax(weights)
    chosen = axis.pick(probabilities, tokens)[:, 0]

    if sampling.ranking == "margin":
        best = axis.largest(probabilities.masked_fill(forbidden, 0.0), 2)
        scores = best[:, 0] - best[:, 1]
    elif sampling.ranking == "neg_entropy":
        scores = axis.sum(probabilities * torch.log(probabilities + EPSILON))
        if allowed_tokens is not None:
            # To be sure of what is ruled out is not to be sure of what is left. (The likeliest token's logarithm
            # is no less than this sum, but for rounding: so rows without a constraint keep their bits.)
            left = torch.log(axis.amax(probabilities.masked_fill(~allowed_tokens, 0.0))[:, 0] + EPSILON)
            scores = torch.where(axis.all(allowed_tokens), scores, torch.minimum(scores, left))
    else:
        scores = chosen
    normaliser = axis.logsumexp(plain)
    logprobs = axis.pick(plain, tokens) - normaliser
    top_logits, top_tokens = axis.top(plain, sampling.top_logprobs)
    return Scores(tokens, chosen, logprobs[:, 0], scores, top_tokens, top_logits - normaliser)


def _filtered(logits: Tensor, sampling: SamplingParams, axis: VocabularyAxis) -> Tensor:
    return filter_logits(logits, sampling.top_p, sampling.top_k, axis, top_k_first=sampling.top_k_first)
