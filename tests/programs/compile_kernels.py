"""Compile all Triton kernels for a kind of NVIDIA GPU, without one: `compile_kernels.py ARCH...`, with 90 for sm_90."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import lopa_ray.execution.attention_backends
import lopa_ray.execution.runner  # noqa: F401  # it defines all operators
from lopa_ray.kernels.operators import LAUNCHES
from lopa_ray.kernels.triton import (
    add_rms_norm,
    choose_experts,
    commit_rows,
    dequantize,
    grouped_matmul,
    invariant_linear,
    quantize_groups,
    quantize_rows,
    rotate_qkv,
    row_scores,
    silu_mul,
    slot_attention,
    sort_rows,
    split_attention,
    weighted_sum,
)

POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}

SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes that a block may have, by kind of GPU."""


FP8_ARCH = 89
"""The first kind of GPU with numbers of fp8."""


def variants(arch: int) -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """Operator, kernel, types of arguments, constants and options of everything that a model may launch."""
    types = dict.fromkeys(("logits", "bias", "weights"), "*fp32") | {"chosen": "*i64", "scale": "fp32"}
    for groups, has_bias in ((1, False), (8, True)):
        constants = choose_experts.constants(256, 8, groups, 4, has_bias=has_bias)
        options = {"num_warps": choose_experts.NUM_WARPS}
        yield "choose_experts", choose_experts._choose_experts, types, constants, options
    types = dict.fromkeys(("chosen", "sources", "experts", "places"), "*i64") | {"ends": "*i32"}
    types |= dict.fromkeys(("size", "first", "own"), "i32")
    yield "sort_rows", sort_rows._sort_rows, types, {"COUNT": 128, "PER_TOKEN": 8}, {}
    for dtype, x in POINTERS.items():
        for dim in (64, 96, 128, 256) if dtype == torch.bfloat16 else (128,):
            options = dict(slot_attention.options(dim, dtype))
            constants = slot_attention.constants(7, 4, dim, of_parts=False)
            constants |= {"KEY_BLOCK": options.pop("KEY_BLOCK")}
            types = dict.fromkeys(("q", "k", "v", "slots", "out"), x) | {"tiles": "*i64", "stops": "*i64"}
            types |= dict.fromkeys(("layer", "layers", "capacity", "fresh_stride"), "i32") | {"scale": "fp32"}
            yield "slot_attention", slot_attention._slot_attention, types, constants, options
            constants |= slot_attention.constants(7, 4, dim, of_parts=True)
            types |= {"out": "*fp32"}
            yield "split_attention", slot_attention._slot_attention, types, constants, options
            types = {"partials": "*fp32", "parts": "*i64", "out": x}
            shape = {"GROUP": 7, "KV_HEADS": 4, "DIM": dim, "DIM_BLOCK": triton.next_power_of_2(dim)}
            yield "split_attention", split_attention._merge_parts, types, shape, {}
        types = dict.fromkeys(("x", "delta", "weight", "total", "out"), x) | {"size": "i32", "eps": "fp32"}
        options = add_rms_norm.options(3584)
        constants = {"BLOCK": options.pop("BLOCK")}
        yield "add_rms_norm", add_rms_norm._add_rms_norm, types, constants, options
        types = dict.fromkeys(("qkv", "cos", "sin", "q_weight", "k_weight", "q_out", "kv_out"), x)
        types |= {"rows": "i32", "eps": "fp32"}
        shape = {"HEADS": 28, "KV_HEADS": 4, "DIM": 128, "ROTARY_DIM": 128, "HALF_BLOCK": 64}
        for norm in (False, True):
            yield "rotate_qkv", rotate_qkv._rotate_qkv, types, shape | {"NORM": norm}, {}
        types = {"gate_up": x, "out": x, "width": "i32"}
        yield "silu_mul", silu_mul._silu_mul, types, {}, {}
        types = {
            "logits": x,
            "numbers": "*fp64",
            "partials": "*fp32",
            "vocab_size": "i32",
            "number_stride": "i32",
        }
        of_parts = types | {"ending_ids": "*i64", "banned": "*i1", "num_ending_ids": "i32"}
        yield "row_scores", row_scores._row_scores, of_parts, {}, row_scores.OPTIONS
        combining = types | {"out": "*fp64", "num_parts": "i32"}
        yield "row_scores", row_scores._combine_parts, combining, {"PARTS": 16}, {"num_warps": 1}
        types = {"x": x, "out": "*i8", "scales": "*fp32", "size": "i32"}
        yield "quantize_rows", quantize_rows._quantize_rows, types, {}, {}
        types = {
            "product": "*i32",
            "scale": "*fp32",
            "weight_scale": "*fp32",
            "bias": x,
            "out": x,
            "size": "i32",
        }
        for bias in (False, True):
            yield "dequantize", dequantize._dequantize, types, {"HAS_BIAS": bias}, {}
        for has_bias in (False, True):
            for outputs in (3584, 152_064):
                types = dict.fromkeys(("x", "weight", "bias", "out"), x)
                types |= dict.fromkeys(("rows", "inputs", "outputs"), "i32")
                constants = invariant_linear.constants(outputs, dtype, has_bias=has_bias)
                yield "invariant_linear", invariant_linear._invariant_linear, types, constants, {}
        types = {"results": x, "places": "*i64", "weights": "*fp32", "ends": "*i32", "out": x}
        types |= {"size": "i32", "num_ends": "i32"}
        for is_part in (False, True):
            constants = {"IS_PART": is_part, "PER_TOKEN": 8}
            yield "weighted_sum", weighted_sum._weighted_sum, types, constants, {}
        for weight in (x, "*i8"):
            types = {"x": x, "weight": weight, "ends": "*i32", "group_scale": "*i32", "out": x}
            types |= dict.fromkeys(("experts", "inputs", "outputs"), "i32")
            constants = grouped_matmul.constants(128, exact=False)
            yield "grouped_matmul", grouped_matmul._grouped_matmul, types, constants, {}
        for width in (128, 96, grouped_matmul.ANY_WIDTH) if arch >= FP8_ARCH else ():
            in_fp8 = types | {"weight": "*fp8e4nv", "group_scale": "*fp32"}
            constants = grouped_matmul.constants(128, exact=False, width=width)
            yield "grouped_matmul", grouped_matmul._grouped_matmul, in_fp8, constants, {}
            in_fp8 = {"x": x, "out": "*fp8e4nv", "scales": "*fp32"}
            in_fp8 |= dict.fromkeys(("rows", "size", "width"), "i32")
            constants = {"BLOCK": quantize_groups.block_size(width)}
            yield "quantize_groups", quantize_groups._quantize_groups, in_fp8, constants, {}
        types |= {"x": "*i8", "weight": "*i8", "out": "*i32"}
        constants = grouped_matmul.constants(128, exact=True)
        yield "grouped_matmul", grouped_matmul._grouped_matmul, types, constants, {}
        types = {"slots": x, "staged": x, "table": "*i64", "staged_rows": "i32", "capacity": "i32"}
        shape = {"PLANES": 56, "KV_HEADS": 4, "DIM": 128, "BLOCK": 512}
        yield "commit_rows", commit_rows._commit_rows, types, shape, {}


def compile_kernel(
    arch: int, kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], options: Mapping[str, int]
) -> Any:
    """Binary and metadata, with pointers and sizes aligned as those of torch's tensors are."""
    index = {name: (at,) for at, name in enumerate(kernel.arg_names)}
    aligned = [name for name, kind in types.items() if kind.startswith("*") or kind == "i32"]
    source = ASTSource(
        fn=kernel,
        signature=dict(types) | dict.fromkeys(constants, "constexpr"),
        constexprs={index[name]: value for name, value in constants.items()},
        attrs={index[name]: [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(options))


def main(archs: list[int]) -> None:
    for arch in archs:
        compiled = []
        for operator, kernel, types, constants, options in variants(arch):
            binary = compile_kernel(arch, kernel, types, constants, options)
            assert binary.asm["cubin"], operator
            assert binary.metadata.shared <= SHARED_MEMORY[arch], (
                operator,
                constants,
                binary.metadata.shared,
            )
            compiled.append(operator)
        wanted = set(LAUNCHES) - ({"quantize_groups"} if arch < FP8_ARCH else set())
        assert set(compiled) == wanted, wanted - set(compiled)
        print(f"sm_{arch}: {len(compiled)} kernels")


if __name__ == "__main__":
    main([int(arch) for arch in sys.argv[1:]])
