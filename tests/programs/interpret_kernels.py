"""Run Triton kernels in Triton's interpreter, on random input, against references: `interpret_kernels.py NAME=N...`.

TRITON_INTERPRET=1 has to be set before anything imports Triton, hence a process of its own. bf16 is left out: the
interpreter's products of it are wrong.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from importlib import import_module

import numpy as np
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from lopa_ray.execution.lane import Lane
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.kernels import (
    choose_experts,
    commit_rows,
    fp8,
    grouped_matmul,
    int8,
    invariant_linear,
    rms_norm,
    rotary,
    row_scores,
    silu_mul,
    slot_attention,
    sort_rows,
    weighted_sum,
)
from lopa_ray.kernels.operators import LAUNCHES
from lopa_ray.kernels.padding import bucket_rows
from lopa_ray.kernels.slot_attention import MAX_SPLIT_ROWS, PART_KEYS
from lopa_ray.protocol.vocabulary import Vocabulary

DTYPES = {torch.float32: 2e-5, torch.float16: 4e-3}
"""How far a kernel may be from its reference, on numbers of the order of 1."""

CAPACITY, LONG_CAPACITY = 160, 5200
"""Positions of a slot, for lanes with one part and with several."""


def launch(operator: str, *arguments: object) -> object:
    """Run the operator's kernel, which is to be as many launches as are listed."""
    module = import_module(f"lopa_ray.kernels.triton.{operator}")
    launched, run = [], InterpretedFunction.run

    def counted(self: object, *given: object, **options: object) -> object:
        launched.append(self)
        return run(self, *given, **options)

    InterpretedFunction.run = counted
    try:
        result = module.launch(*arguments)
    finally:
        InterpretedFunction.run = run
    assert len(launched) == LAUNCHES[operator], f"{operator}: {len(launched)} launches"
    return result


def close(result: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Equal but for rounding."""
    assert result.dtype == wanted.dtype
    torch.testing.assert_close(result, wanted, atol=DTYPES[dtype], rtol=DTYPES[dtype])


def check_silu_mul(draw: random.Random, dtype: torch.dtype) -> None:
    gate_up = torch.randn(draw.randint(1, 9), 2 * draw.choice([8, 100, 1500]), dtype=dtype)
    close(launch("silu_mul", gate_up), silu_mul.silu_mul(gate_up), dtype)


def check_add_rms_norm(draw: random.Random, dtype: torch.dtype) -> None:
    rows, size = draw.randint(1, 9), draw.choice([16, 200, 1024])
    x, delta, weight = torch.randn(2 * rows + 1, size, dtype=dtype).split((rows, rows, 1))
    wanted = rms_norm.add_rms_norm(x, delta, weight[0], 1e-6)
    total, normed = launch("add_rms_norm", x, delta, weight[0], 1e-6)
    assert torch.equal(total, wanted[0])
    close(normed, wanted[1], dtype)


def check_rotate_qkv(draw: random.Random, dtype: torch.dtype) -> None:
    rows, kv_heads, dim = draw.randint(1, 6), draw.choice([1, 2, 8]), draw.choice([64, 80, 128, 256])
    heads = kv_heads * draw.choice([1, 3, 7])
    qkv = torch.randn(rows, heads + 2 * kv_heads, dim, dtype=dtype)
    cos, sin = torch.randn(2, rows, 1, draw.choice([dim, dim // 2, 16]), dtype=dtype)
    weights = torch.randn(2, dim, dtype=dtype) if draw.random() < 0.5 else (None, None)
    kv = torch.empty(2, rows, kv_heads, dim, dtype=dtype)
    wanted = rotary.rotate_qkv(qkv, heads, cos, sin, *weights, 1e-6)
    close(launch("rotate_qkv", qkv, heads, cos, sin, *weights, 1e-6, kv), wanted[0], dtype)
    close(kv, torch.stack(wanted[1:]), dtype)


def check_row_scores(draw: random.Random, dtype: torch.dtype) -> None:
    rows, vocab = draw.randint(1, 12), draw.choice([40, 5000, 40_000])
    logits = (torch.randn(rows, vocab) * draw.choice([0.1, 3, 30])).to(dtype)
    numbers = torch.tensor(
        [
            (draw.choice([1.0, 0.3, 2.0]), draw.randrange(3), draw.random() < 0.2, 0.0, 0.0)
            for _ in range(rows)
        ],
        dtype=torch.float64,
    )
    banned = torch.rand(vocab) < 0.1
    banned[7] = False
    ending_ids = torch.randint(-1, vocab, (rows, draw.choice([0, 1, 3])))
    if ending_ids.shape[1]:
        ending_ids[: rows // 2, 0] = logits[: rows // 2].argmax(-1)
        ending_ids[ending_ids == 7] = -1
    if draw.random() < 0.3:
        logits[0] = draw.choice([torch.nan, -torch.inf])
        ending_ids[0] = -1
    scores = launch("row_scores", logits, numbers, ending_ids, banned)
    alone = launch("row_scores", logits[-1:], numbers[-1:], ending_ids[-1:], banned)
    assert torch.equal(alone.view(torch.int64), scores[-1:].view(torch.int64)), "a row depends on the others"
    wanted = row_scores.row_scores(logits, numbers, ending_ids, banned)
    broken = wanted[:, 1].isnan()
    assert broken.tolist() == scores[:, 1].isnan().tolist()
    assert scores[~broken, 0].tolist() == wanted[~broken, 0].tolist()
    torch.testing.assert_close(scores[~broken], wanted[~broken], atol=2e-5, rtol=2e-5)


def check_commit_rows(draw: random.Random, dtype: torch.dtype) -> None:
    slots = torch.zeros(3, draw.randint(1, 3), 2, draw.choice([1, 3]), 32, draw.choice([16, 80])).to(dtype)
    staged = torch.randn(slots.shape[1], 2, 20, *slots.shape[3::2]).to(dtype)
    places = draw.sample([(slot, position) for slot in range(3) for position in range(32)], 12)
    table = torch.tensor([(draw.randrange(20), *place) for place in places])
    wanted = slots.clone()
    commit_rows.commit_rows(wanted, staged, table)
    launch("commit_rows", slots, staged, table)
    assert torch.equal(slots, wanted) and bool(wanted.any())


def check_quantize_rows(draw: random.Random, dtype: torch.dtype) -> None:
    x = (torch.randn(draw.randint(1, 9), draw.choice([16, 1000, 2500])) * draw.choice([1e-3, 1, 100])).to(
        dtype
    )
    x[0] = 0
    if draw.random() < 0.3:
        x[-1, draw.randrange(x.shape[1])] = torch.nan
    quantized, scale = launch("quantize_rows", x)
    wanted, wanted_scale = int8.quantize_rows(x)
    torch.testing.assert_close(scale, wanted_scale, atol=0, rtol=0, equal_nan=True)
    whole = ~scale.isnan()
    assert torch.equal(quantized[whole], wanted[whole])


def check_quantize_groups(draw: random.Random, dtype: torch.dtype) -> None:
    width = draw.choice([16, 128, 1500])
    shape = draw.randint(2, 9), width * draw.choice([1, 3])
    x = (torch.randn(shape) * draw.choice([1e-3, 1, 100])).to(dtype)
    x[0] = 0
    if draw.random() < 0.3:
        x[-1, draw.randrange(x.shape[1])] = torch.nan
    quantized, scale = launch("quantize_groups", x, width)
    wanted, wanted_scale = fp8.quantize_groups(x, width)
    torch.testing.assert_close(scale.t(), wanted_scale, atol=0, rtol=0, equal_nan=True)
    # The interpreter rounds halves up, cuts off below the smallest normal number, and loses the carry of a number that
    # rounds up to a power of two: it then gives half of that.
    whole = ~scale.t().isnan().repeat_interleave(width, dim=1)
    result, wanted = quantized.float()[whole], wanted.float()[whole]
    result = torch.where(result * 2 == wanted, wanted, result)
    exact = (x.float() / wanted_scale.repeat_interleave(width, dim=1))[whole]
    assert bool(((result - exact).abs() <= exact.abs() / 16 + 2**-9).all())
    assert (result == wanted).float().mean() > 0.8


def check_dequantize(draw: random.Random, dtype: torch.dtype) -> None:
    rows, size = draw.randint(1, 9), draw.choice([16, 1000, 2500])
    product = torch.randint(-(2**20), 2**20, (rows, size), dtype=torch.int32)
    scale, weight_scale = torch.rand(rows) * 1e-3, torch.rand(size) * 1e-3
    bias = torch.randn(size).to(dtype) if draw.random() < 0.5 else None
    given = (product, scale, weight_scale, bias, dtype)
    close(launch("dequantize", *given), int8.dequantize(*given), dtype)


def check_grouped_matmul(draw: random.Random, dtype: torch.dtype) -> None:
    experts, inputs, outputs = draw.choice([1, 3, 16]), draw.choice([16, 40, 130]), draw.choice([16, 70])
    counts = [draw.choice([0, 1, 15, 16, 17, 40]) for _ in range(experts)]
    counts[draw.randrange(experts)] += 1
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    # Rows behind the last end are those of other shards' experts.
    stop, behind = sum(counts), draw.choice([0, 1, 40])
    x = torch.randn(stop + behind, inputs).to(dtype)
    weight = (torch.randn(experts, outputs, inputs) / inputs**0.5).to(dtype)

    def both(x: Tensor, weight: Tensor, scale: Tensor | None = None, width: int = 0) -> tuple[Tensor, Tensor]:
        given = (x, weight, ends, scale, width)
        products = launch("grouped_matmul", *given), grouped_matmul.grouped_matmul(*given)
        assert products[0].shape == products[1].shape
        return products[0][:stop], products[1][:stop]

    close(*both(x, weight), dtype)
    ints = torch.randint(-127, 128, weight.shape, dtype=torch.int8)
    close(*both(x / 1000, ints), dtype)
    product, wanted = both(torch.randint(-127, 128, x.shape, dtype=torch.int8), ints)
    assert product.dtype == wanted.dtype == torch.int32
    assert torch.equal(product, wanted)
    width = draw.choice([inputs, 64, 128, 24])
    in_fp8 = (torch.randn(weight.shape) * 50).to(fp8.FP8)
    scale = (1 + torch.rand(experts, outputs, -(-inputs // width))) / 50 / inputs**0.5
    close(*both(x, in_fp8, scale, width), dtype)


def check_choose_experts(draw: random.Random, dtype: torch.dtype) -> None:
    groups, size = draw.choice([(1, 8), (1, 100), (1, 128), (4, 4), (8, 32)])
    kept, experts = draw.randint(1, groups), groups * size
    per_token = draw.randint(1, min(8, kept * size))
    logits = torch.randn(draw.randint(1, 9), experts)
    logits[0] = logits[0].round()  # equal scores
    bias = torch.randn(experts).round(decimals=1) if groups > 1 or draw.random() < 0.3 else None
    if bias is not None and draw.random() < 0.3:  # a bias per row, as with block routing
        bias = bias.repeat(len(logits), 1)
        bias[:, : experts - per_token * groups] = -torch.inf
    given = (per_token, groups, kept, draw.choice([1.0, 2.5]))
    chosen, weights = launch("choose_experts", logits, bias, *given)
    names = dict(zip(("per_token", "groups", "kept_groups", "scale"), given, strict=True))
    wanted, wanted_weights = choose_experts.choose_experts(logits, bias, **names)
    assert torch.equal(chosen, wanted)
    torch.testing.assert_close(weights, wanted_weights)
    logits[-1] = torch.nan
    chosen, _ = launch("choose_experts", logits, bias, *given)
    assert bool(((chosen >= 0) & (chosen < experts)).all())
    assert all(len(set(row)) == per_token for row in chosen.tolist())


def check_sort_rows(draw: random.Random, dtype: torch.dtype) -> None:
    count, per_token = draw.choice([(4, 1), (8, 2), (60, 8)])
    rows = draw.choice([1, 5, 200])
    chosen = torch.stack([torch.randperm(count)[:per_token] for _ in range(rows)])
    first = draw.randrange(count)
    own = range(count) if draw.random() < 0.5 else range(first, draw.randint(first + 1, count))
    given = (chosen, own.start, len(own), count)
    for result, wanted in zip(
        launch("sort_rows", *given), sort_rows.sort_rows(chosen, own, count), strict=True
    ):
        assert result.dtype == wanted.dtype and torch.equal(result, wanted)


def check_weighted_sum(draw: random.Random, dtype: torch.dtype) -> None:
    rows, per_token, size = draw.randint(1, 9), draw.choice([1, 2, 8]), draw.choice([16, 200, 2048])
    places = torch.randperm(rows * per_token).view(rows, per_token)
    results, weights = torch.randn(rows * per_token, size).to(dtype), torch.rand(rows, per_token)
    ends = torch.tensor([0, draw.randint(0, rows * per_token)], dtype=torch.int32)
    given = results, places, weights
    close(launch("weighted_sum", *given, None), weighted_sum.weighted_sum(*given), dtype)
    results[int(ends[-1]) :] = torch.nan  # what is behind the last end has no value
    close(launch("weighted_sum", *given, ends), weighted_sum.weighted_sum(*given, ends), dtype)


def check_invariant_linear(draw: random.Random, dtype: torch.dtype) -> None:
    inputs, outputs = draw.choice([16, 40, 130]), draw.choice([16, 70])
    x = torch.randn(617, inputs).to(dtype)
    weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    bias = torch.randn(outputs).to(dtype) if draw.random() < 0.5 else None
    alone = launch("invariant_linear", x[:1], weight, bias)
    close(alone, invariant_linear.invariant_linear(x[:1], weight, bias), dtype)
    # A row's bits are the same among any number of others, at any place.
    for others in (15, 16, 17, 100, 600):
        at = draw.randint(0, others)
        rows = torch.cat((x[1 : at + 1], x[:1], x[at + 1 : others + 1]))
        product = launch("invariant_linear", rows, weight, bias)
        assert torch.equal(product[at : at + 1], alone), (others, at)
    close(product, invariant_linear.invariant_linear(rows, weight, bias), dtype)


def any_lane(draw: random.Random) -> Lane:
    """One that begins anywhere in a slot, in any number of segments; it may see what is cached behind it."""
    return lane_of(draw, draw.choice([0, 1, 33, 70]), draw.choice([1, 5, 17, 40]))


def lane_of(draw: random.Random, start: int, rows: int) -> Lane:
    """The same with these rows."""
    stop = start + rows
    ends = sorted({*draw.sample(range(start + 1, stop + 1), min(rows, draw.randint(1, 4))), stop})
    behind = stop + draw.choice([0, 0, 7])
    segments = tuple((end, behind if end == stop else draw.choice([end, stop])) for end in ends)
    return Lane(draw.randrange(3), start, np.zeros(rows, np.int64), segments)


def check_slot_attention(draw: random.Random, dtype: torch.dtype) -> None:
    check_lanes(draw, dtype, [any_lane(draw) for _ in range(draw.randint(1, 5))], CAPACITY, split=False)


def check_split_attention(draw: random.Random, dtype: torch.dtype) -> None:
    """Lanes with one part and with several, and one of so many rows that it is not split."""
    starts = draw.sample([0, 1, 500, 1023, 1024, 1025, 2048], draw.randint(1, 3))
    lanes = [lane_of(draw, start, draw.choice([1, 5, 17])) for start in (*starts, draw.choice([1100, 5000]))]
    draw.shuffle(lanes)
    if draw.random() < 0.3:
        lanes.append(lane_of(draw, 800, MAX_SPLIT_ROWS + 1))
    check_lanes(draw, dtype, lanes, LONG_CAPACITY, split=True)


def check_lanes(
    draw: random.Random, dtype: torch.dtype, lanes: list[Lane], capacity: int, *, split: bool
) -> None:
    """The attention of lanes is that of the reference, and that of each lane alone, bit for bit."""
    kv_heads, group, dim = draw.choice([1, 2]), draw.choice([1, 2, 7]), draw.choice([64, 96, 128, 256])
    options = PackingOptions(capacity, group, Vocabulary(1, -1, 0), bucket_rows)
    slots = torch.randn(3, 2, 2, kv_heads, capacity, dim).to(dtype)

    def kernel(*arguments: Tensor) -> object:
        *given, parts = arguments
        return launch("split_attention", *arguments) if len(parts) else launch("slot_attention", *given)

    def attend(lanes: list[Lane], q: Tensor, k: Tensor, v: Tensor, call: Callable[..., object]) -> Tensor:
        packing = Packing(lanes, (), options)
        columns = packing.to_device(torch.device("cpu"))
        missing = packing.rows_bucket - packing.num_rows
        q, k, v = (torch.cat((x, torch.randn(missing, *x.shape[1:]).to(dtype))) for x in (q, k, v))
        seen = [max(stop for _, stop in lane.segments) for lane in lanes]
        is_long = [
            stop > PART_KEYS and len(lane.canvas) <= MAX_SPLIT_ROWS
            for lane, stop in zip(lanes, seen, strict=True)
        ]
        assert (len(columns.parts) > 0) == any(is_long)
        attended = call(q, k, v, slots, 1, columns.tiles, columns.stops, columns.parts)
        assert not attended[packing.num_rows :].any()
        return attended[: packing.num_rows]

    rows = sum(len(lane.canvas) for lane in lanes)
    heads = (kv_heads * group, kv_heads, kv_heads)
    qkv = [torch.randn(rows, num_heads, dim).to(dtype) for num_heads in heads]
    attended = attend(lanes, *qkv, kernel)
    close(attended, attend(lanes, *qkv, slot_attention.slot_attention), dtype)
    # A lane's bits are the same alone.
    first = 0
    alone = draw.randrange(len(lanes))
    for at, lane in enumerate(lanes):
        own = slice(first, first + len(lane.canvas))
        first = own.stop
        if split or at == alone:
            assert torch.equal(attend([lane], *(x[own] for x in qkv), kernel), attended[own])


def matmul(a: np.ndarray, b: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """The interpreter's `tl.dot`, where a row's bits do not depend on its place: a GPU's do not, a BLAS's may."""
    return np.einsum("...ij,...jk->...ik", a, b, dtype=dtype)


def main(operator: str, cases: int) -> None:
    np.matmul = matmul
    draw = random.Random(operator)
    torch.manual_seed(0)
    check = globals()[f"check_{operator}"]
    with torch.inference_mode():
        for dtype in DTYPES:
            for _ in range(cases):
                check(draw, dtype)
    print(f"{operator}: {2 * cases} cases")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        name, _, number = word.partition("=")
        main(name, int(number))
