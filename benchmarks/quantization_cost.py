"""What int8 costs and brings: error of the logits, tokens that change, problems solved, time per forward.

    python benchmarks/quantization_cost.py
    python benchmarks/quantization_cost.py --model DIR --problems 20    # another checkpoint, on the same problems
    python benchmarks/quantization_cost.py --rows 16 64 256                   # other batches

Two Markdown tables. The first is about decoding with the preset `demo`, each number format against float32.
Logits are compared on canvases of which a random half is masked. The second is processor time of the
transformer without attention, on one thread: one layer of SDAR-1.7B's shape with random weights, and
the model of the first table.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from itertools import zip_longest

import torch
from torch import Tensor

from lopa_ray.config.config import Config
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.model_loader import DTYPES, ModelSpec
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.weights import random_model
from lopa_ray.presets.word_problems import Problem, held_out_problems, is_correct
from tables import markdown_table

SEED = 2
FORMATS = (
    ("float32", "none"),
    ("bfloat16", "none"),
    ("float32", "w8"),
    ("float32", "w8a8"),
    ("bfloat16", "w8"),
    ("bfloat16", "w8a8"),
)
SDAR_LAYER = {
    "hidden_size": 2048,
    "num_layers": 1,
    "num_heads": 16,
    "num_kv_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 1000,
    "mask_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": None,
    "bos_token_id": None,
}


@dataclasses.dataclass
class Decoded:
    """One number format on all problems."""

    results: list[GenerationResult]
    logits: list[Tensor]
    """Per canvas fp32 [rows that decide masked positions, V]."""
    megabytes: float


def decode(engine: LocalEngine, problems: list[Problem], canvases: list[list[int]]) -> Decoded:
    """Decode all problems, and evaluate the canvases (made of the first results, if there are none yet)."""
    results = engine.generate([problem.question for problem in problems])
    if not canvases:
        rng, mask_token_id = random.Random(SEED), engine.vocabulary.mask_token_id
        for problem, result in zip(problems, results, strict=True):
            answer = [mask_token_id if rng.random() < 0.5 else token for token in result.token_ids]
            canvases.append([*engine.create_session(problem.question).prompt, *answer])
    model = engine.runner.model
    logits = []
    for ids in canvases:
        masked = [p for p, token in enumerate(ids) if token == model.config.mask_token_id]
        logits.append(engine.runner.logits(ids)[[p - int(model.config.shifted) for p in masked]])
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Decoded(results, logits, size / 1e6)


def same_tokens(ours: list[GenerationResult], theirs: list[GenerationResult]) -> float:
    """Share of positions with the same token."""
    pairs = [
        pair
        for a, b in zip(ours, theirs, strict=True)
        for pair in zip_longest(a.token_ids, b.token_ids, fillvalue=-1)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def accuracy_rows(model: str, count: int) -> list[list[str]]:
    """The first table: size, errors, agreement with float32 and score of each format."""
    problems, canvases = held_out_problems(SEED, count), []
    reference: Decoded | None = None
    rows = [
        ["weights", "MB", "error of logits", "largest", "same first choice", "same tokens", "solved", "TPF"]
    ]
    for dtype, quantization in FORMATS:
        changes = {"model": {"path": model, "dtype": dtype, "quantization": quantization}}
        found = decode(LocalEngine.from_config(Config.load("demo", changes)), problems, canvases)
        reference = reference or found
        ours, theirs = torch.cat(found.logits), torch.cat(reference.logits)
        solved = [is_correct(p, r.text or "") for p, r in zip(problems, found.results, strict=True)]
        tokens, steps = sum(r.tokens for r in found.results), sum(r.steps for r in found.results)
        rows.append(
            [
                format_name(dtype, quantization),
                f"{found.megabytes:.1f}",
                f"{100 * ((ours - theirs).norm() / theirs.norm()).item():.2f} %",
                f"{(ours - theirs).abs().max().item():.2f}",
                f"{100 * (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item():.1f} %",
                f"{100 * same_tokens(found.results, reference.results):.1f} %",
                f"{100 * sum(solved) / count:.0f} %",
                f"{tokens / steps:.2f}",
            ]
        )
    return rows


def format_name(dtype: str, quantization: str) -> str:
    """What the tables call a number format."""
    return dtype if quantization == "none" else f"{quantization}, rest {dtype}"


def no_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The queries themselves: attention is the same in every format, so it is left out."""
    return q


def least_cpu_ms(model: Transformer, rows: int, repeats: int) -> float:
    """Processor time of a forward of so many rows: the least of several, since others in the cache only add to it."""
    ids, positions = torch.zeros(rows, dtype=torch.long), torch.arange(rows)
    times = []
    with torch.inference_mode():
        for _ in range(repeats):
            began = time.thread_time()
            model(ids, positions, no_attention)
            times.append(time.thread_time() - began)
    return 1000 * min(times)


def speed_rows(shapes: dict[str, ModelConfig], batches: list[int], repeats: int) -> list[list[str]]:
    """The second table: milliseconds per forward of each format, by shape and rows."""
    columns = [f"{shape}, {rows} rows" for shape in shapes for rows in batches]
    table = [["weights", *columns]]
    for dtype, quantization in FORMATS:
        cells = []
        for config in shapes.values():
            shape = dataclasses.replace(config, quantization=quantization)
            model = random_model(shape, SEED, DTYPES[dtype], "cpu")
            cells += [f"{least_cpu_ms(model, rows, repeats):.2f} ms" for rows in batches]
        table.append([format_name(dtype, quantization), *cells])
    return table


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 160])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("\n" + markdown_table(accuracy_rows(arguments.model, arguments.problems)))
    own = ModelSpec.read(Config.load("demo", {"model": {"path": arguments.model}})).model
    shapes = {"SDAR-1.7B layer": dataclasses.replace(own, **SDAR_LAYER), arguments.model: own}
    print("\n" + markdown_table(speed_rows(shapes, arguments.rows, arguments.repeats)))


if __name__ == "__main__":
    main()
