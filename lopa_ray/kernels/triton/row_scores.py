"""Triton kernels of `row_scores`: programs read the parts of a row's logits once each, and another combines the parts.

Parts have a fixed length, so the order of a row's sums does not depend on the number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lopa_ray.kernels.row_scores import RANKINGS, SCORE_COLUMNS

BLOCK = tl.constexpr(2048)

PART = tl.constexpr(8 * 2048)  # logits per program

PARTIALS = tl.constexpr(8)
"""Values of a part: largest logit and sum of weights, without and with temperature; sum of the weighted differences to
the largest; best logit, its id, and the second best of ids that may be chosen."""

LOWEST = tl.constexpr(-3.4028234663852886e38)

MARGIN, NEG_ENTROPY = (tl.constexpr(RANKINGS.index(name)) for name in ("margin", "neg_entropy"))

COLUMNS = tl.constexpr(SCORE_COLUMNS)

OPTIONS = {"num_warps": 8}
"""Options of the kernel that reads logits. One warp combines the parts of a row."""


# The number of ending ids depends on the requests. Without specialization it does not cause new compilations.
@triton.jit(do_not_specialize=["num_ending_ids"], do_not_specialize_on_alignment=["ending_ids"])
def _row_scores(logits, numbers, ending_ids, banned, partials, vocab_size, number_stride, num_ending_ids):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    numbers += row * number_stride
    temperature = tl.load(numbers).to(tl.float32)
    half = tl.load(numbers + 2) > 0
    # Every column of a block has its own running values. They are combined after the last block.
    plain_max = tl.full((BLOCK,), LOWEST, tl.float32)
    plain_sum = tl.zeros((BLOCK,), tl.float32)
    shaped_max = tl.full((BLOCK,), LOWEST, tl.float32)
    shaped_sum = tl.zeros((BLOCK,), tl.float32)
    weighted_sum = tl.zeros((BLOCK,), tl.float32)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_id = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    second = tl.full((BLOCK,), float("-inf"), tl.float32)
    for begin in range(part * PART, tl.minimum((part + 1) * PART, vocab_size), BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        there = ids < vocab_size
        plain = tl.load(logits + row * vocab_size + ids, mask=there, other=float("-inf")).to(tl.float32)
        shaped = tl.where(half, plain.to(tl.float16).to(tl.float32), plain)
        shaped = tl.div_rn(shaped, temperature)

        highest = tl.maximum(plain_max, plain)
        plain_sum = plain_sum * tl.exp(plain_max - highest) + tl.exp(plain - highest)
        plain_max = highest

        highest = tl.maximum(shaped_max, shaped)
        shrink = tl.exp(shaped_max - highest)
        below = shaped - highest
        weight = tl.exp(below)
        # `weighted_sum` is the sum of weights times differences to the running maximum. When the maximum changes, the
        # differences change with it.
        moved = weighted_sum + (shaped_max - highest) * shaped_sum
        weighted_sum = tl.where(shaped_sum > 0, moved * shrink, 0.0) + tl.where(
            weight > 0, weight * below, 0.0
        )
        shaped_sum = shaped_sum * shrink + weight
        shaped_max = highest

        allowed = there & (tl.load(banned + ids, mask=there, other=1) == 0)
        for at in range(num_ending_ids):
            allowed = allowed & (ids != tl.load(ending_ids + row * num_ending_ids + at))
        candidate = tl.where(allowed, shaped, float("-inf"))
        better = candidate > best
        second = tl.where(better, best, tl.maximum(second, candidate))
        best_id = tl.where(better, ids, best_id)
        best = tl.where(better, candidate, best)

    at = partials + (row * tl.num_programs(1) + part) * PARTIALS
    top = tl.max(plain_max, 0)
    tl.store(at, top)
    tl.store(at + 1, tl.sum(plain_sum * tl.exp(plain_max - top), 0))
    top = tl.max(shaped_max, 0)
    shrink = tl.exp(shaped_max - top)
    moved = weighted_sum + (shaped_max - top) * shaped_sum
    tl.store(at + 2, top)
    tl.store(at + 3, tl.sum(shaped_sum * shrink, 0))
    tl.store(at + 4, tl.sum(tl.where(shaped_sum > 0, moved * shrink, 0.0), 0))
    winner = tl.max(best, 0)
    token = tl.min(tl.where(best == winner, best_id, vocab_size), 0)
    tl.store(at + 5, winner)
    # fp32 has all ids exactly. A part in which no token may be chosen has an id after the last id.
    tl.store(at + 6, tl.minimum(token, vocab_size).to(tl.float32))
    tl.store(at + 7, tl.max(tl.where(best_id == token, second, best), 0))


@triton.jit
def _combine_parts(logits, numbers, partials, out, vocab_size, number_stride, num_parts, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ranking = tl.load(numbers + row * number_stride + 1)
    part = tl.arange(0, PARTS)
    there = part < num_parts
    at = partials + (row * num_parts + part) * PARTIALS
    plain_max = tl.load(at, mask=there, other=LOWEST)
    plain_sum = tl.load(at + 1, mask=there, other=0.0)
    shaped_max = tl.load(at + 2, mask=there, other=LOWEST)
    shaped_sum = tl.load(at + 3, mask=there, other=0.0)
    weighted_sum = tl.load(at + 4, mask=there, other=0.0)
    best = tl.load(at + 5, mask=there, other=float("-inf"))
    best_id = tl.load(at + 6, mask=there, other=vocab_size).to(tl.int32)
    second = tl.load(at + 7, mask=there, other=float("-inf"))

    top = tl.max(plain_max, 0)
    normalizer = top + tl.log(tl.sum(plain_sum * tl.exp(plain_max - top), 0))
    top = tl.max(shaped_max, 0)
    shrink = tl.exp(shaped_max - top)
    total = tl.sum(shaped_sum * shrink, 0)
    moved = weighted_sum + (shaped_max - top) * shaped_sum
    weighted = tl.sum(tl.where(shaped_sum > 0, moved * shrink, 0.0), 0)

    winner = tl.max(best, 0)
    token = tl.min(tl.where(best == winner, best_id, vocab_size), 0)
    token = tl.where(token < vocab_size, token, 0)  # a row of NaN has no best token
    runner_up = tl.max(tl.where(best_id == token, second, best), 0)
    probability = tl.exp(winner - top) / total
    score = probability
    if ranking == MARGIN:
        score = probability - tl.exp(runner_up - top) / total
    if ranking == NEG_ENTROPY:
        score = weighted / total - tl.log(total)
    logprob = tl.load(logits + row * vocab_size + token).to(tl.float32) - normalizer
    at = out + row * COLUMNS
    tl.store(at, token.to(tl.float64))
    tl.store(at + 1, probability.to(tl.float64))
    tl.store(at + 2, logprob.to(tl.float64))
    tl.store(at + 3, score.to(tl.float64))


def launch(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    """See `lopa_ray.kernels.row_scores`."""
    logits = logits.contiguous()
    rows, vocab_size = logits.shape
    parts, stride = triton.cdiv(vocab_size, PART.value), numbers.stride(0)
    partials = logits.new_empty(rows, parts, PARTIALS.value, dtype=torch.float32)
    out = numbers.new_empty(rows, SCORE_COLUMNS)
    tensors = logits, numbers, ending_ids.contiguous(), banned, partials
    _row_scores[(rows, parts)](*tensors, vocab_size, stride, ending_ids.shape[1], **OPTIONS)
    padded = triton.next_power_of_2(parts)
    _combine_parts[(rows,)](logits, numbers, partials, out, vocab_size, stride, parts, padded, num_warps=1)
    return out
