"""Triton kernel of `row_scores`: a program reads the logits of one row once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lopa_ray.kernels.row_scores import RANKINGS, SCORE_COLUMNS

BLOCK = 2048

LOWEST = -3.4028234663852886e38


# The number of ending ids depends on the requests. Without specialization it does not cause new compilations.
@triton.jit(do_not_specialize=["num_ending_ids"], do_not_specialize_on_alignment=["ending_ids"])
def _row_scores(
    logits,
    numbers,
    ending_ids,
    banned,
    out,
    vocab_size,
    number_stride,
    num_ending_ids,
    LOWEST: tl.constexpr,
    MARGIN: tl.constexpr,
    NEG_ENTROPY: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    numbers += row * number_stride
    temperature = tl.load(numbers).to(tl.float32)
    ranking = tl.load(numbers + 1)
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
    for begin in range(0, vocab_size, BLOCK):
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

    top = tl.max(plain_max, 0)
    normalizer = top + tl.log(tl.sum(plain_sum * tl.exp(plain_max - top), 0))
    top = tl.max(shaped_max, 0)
    shrink = tl.exp(shaped_max - top)
    total = tl.sum(shaped_sum * shrink, 0)
    moved = weighted_sum + (shaped_max - top) * shaped_sum
    weighted = tl.sum(tl.where(shaped_sum > 0, moved * shrink, 0.0), 0)

    winner = tl.max(best, 0)
    token = tl.min(tl.where(best == winner, best_id, 0x7FFFFFFF), 0)
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
    out = numbers.new_empty(rows, SCORE_COLUMNS)
    _row_scores[(rows,)](
        logits,
        numbers,
        ending_ids.contiguous(),
        banned,
        out,
        vocab_size,
        numbers.stride(0),
        ending_ids.shape[1],
        **constants(),
        num_warps=8,
    )
    return out


def constants() -> dict[str, float]:
    """The compile-time constants of the kernel."""
    return {
        "LOWEST": LOWEST,
        "MARGIN": RANKINGS.index("margin"),
        "NEG_ENTROPY": RANKINGS.index("neg_entropy"),
        "COLUMNS": SCORE_COLUMNS,
        "BLOCK": BLOCK,
    }
