"""What stored prefixes bring, and what the approximate ones change.

    python benchmarks/prefix_cost.py
    python benchmarks/prefix_cost.py --problems 20 --shared 256

Two Markdown tables, on one thread. The first is block diffusion (exact) on a model with random weights, 4 layers of
1024: requests whose prompts share all but their ends. The second is the preset `demo` under full attention
(approximate) on held-out problems: each after another one that begins with the same 16 tokens, and once more. Tokens
and answers are compared with those without a prefix cache. Times are processor time.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from lopa_ray.config.config import Config
from lopa_ray.config.decoder_settings import BlockDiffusionSettings
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.decoding.result import GenerationResult, TraceStep
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.checkpoint import load_config
from lopa_ray.model.weights import random_model
from lopa_ray.presets.word_problems import Problem, held_out_problems, is_correct
from lopa_ray.scheduling.prefix_index import APPROXIMATE_GRANULARITY
from tables import markdown_table

SEED = 5
UNIQUE_TOKENS = 16
"""At the end of each prompt (first table)."""

CANDIDATES = 8000
"""Problems among which to look for prompts that begin with the same tokens (second table)."""

SHAPE = {
    "hidden_size": 1024,
    "num_layers": 4,
    "num_heads": 16,
    "num_kv_heads": 8,
    "head_dim": 64,
    "intermediate_size": 3072,
    "vocab_size": 4000,
    "mask_token_id": 1,
    "eos_token_id": 0,
    "stop_token_ids": (),
    "shifted": False,
}


@dataclass(frozen=True)
class Decoded:
    """Requests that were decoded one after the other."""

    results: list[GenerationResult]
    first_token_s: list[float]
    """Seconds of processor time until a token was decided."""
    total_s: list[float]
    hits: int
    """Requests that found the beginning of their prompt."""
    saved: int
    """Positions that they did not compute."""


def decode(engine: LocalEngine, sessions: Sequence[DecodeSession]) -> Decoded:
    """Decode and measure."""
    found = Decoded([], [], [], -engine.prefix_index.hit_requests, -engine.prefix_index.hit_positions)
    for session in sessions:
        began = time.process_time()

        def on_step(
            _: int, step: TraceStep, began: float = began, at: int = len(found.first_token_s)
        ) -> None:
            if step.fills and len(found.first_token_s) == at:
                found.first_token_s.append(time.process_time() - began)

        ((_, result),) = engine.run([session], on_step=on_step)
        if isinstance(result, Exception):
            raise result
        found.results.append(result)
        found.total_s.append(time.process_time() - began)
    hits, saved = engine.prefix_index.hit_requests, engine.prefix_index.hit_positions
    return dataclasses.replace(found, hits=found.hits + hits, saved=found.saved + saved)


def common_cells(name: str, found: Decoded) -> list[str]:
    """The cells that both tables have."""
    return [
        name,
        f"{found.hits} of {len(found.results)}",
        f"{found.saved}",
        f"{1000 * statistics.median(found.first_token_s):.1f} ms",
        f"{1000 * statistics.median(found.total_s):.1f} ms",
        f"{sum(result.tokens for result in found.results) / sum(found.total_s):.1f}",
    ]


COLUMNS = ["prefix cache", "found", "positions saved", "first token", "answer", "tokens/s"]


def exact_rows(shared: int, requests: int) -> list[list[str]]:
    """The first table. Raises ValueError if a token differs."""
    shape = dataclasses.replace(load_config(DEMO_MODEL), **SHAPE)
    model = random_model(shape, SEED, torch.float32, "cpu")
    rng = random.Random(SEED)
    prefix = [rng.randrange(2, 4000) for _ in range(shared)]
    prompts = [prefix + [rng.randrange(2, 4000) for _ in range(UNIQUE_TOKENS)] for _ in range(requests)]
    settings = BlockDiffusionSettings(max_new_tokens=32, fuse_store=True, ignore_eos=True)
    length, rows = shared + UNIQUE_TOKENS + settings.max_new_tokens, [COLUMNS]
    tokens = []
    for positions in (0, 2 * length):
        config = Config.parse({"model": {"max_model_len": length, "prefix_cache_positions": positions}})
        engine = LocalEngine(
            config, BranchRunner(model, max_num_seqs=config.model.max_num_seqs, max_model_len=length), None
        )
        found = decode(engine, [engine.create_session(prompt, settings) for prompt in prompts])
        tokens.append([result.token_ids for result in found.results])
        rows.append(common_cells("exact" if positions else "none", found))
    if tokens[0] != tokens[1]:
        raise ValueError("stored prefixes changed tokens: attention must round by shape here")
    return rows


def pairs_with_common_prefix(engine: LocalEngine, count: int) -> list[tuple[Problem, Problem]]:
    """Different problems whose prompts begin with the same tokens, as many as an approximate prefix must have."""
    first: dict[tuple[int, ...], Problem] = {}
    pairs: list[tuple[Problem, Problem]] = []
    for problem in held_out_problems(SEED, CANDIDATES):
        begin = tuple(engine.create_session(problem.question).prompt[:APPROXIMATE_GRANULARITY])
        other = first.pop(begin, None)
        if other is None:
            first[begin] = problem
        else:
            pairs.append((other, problem))
            if len(pairs) == count:
                return pairs
    raise ValueError(f"{CANDIDATES} problems have {len(pairs)} such pairs, fewer than {count}; ask for fewer")


def approximate_rows(count: int) -> list[list[str]]:
    """The second table."""
    rows = [[*COLUMNS, "same tokens", "same answers", "solved"]]
    pairs: list[tuple[Problem, Problem]] = []
    reference: list[GenerationResult] = []
    approximate = {"prefix_cache": "approximate", "prefix_cache_positions": 512 * count}
    for stored in ({}, approximate):
        engine = LocalEngine.from_config(Config.load("demo", {"model": stored}))
        pairs = pairs or pairs_with_common_prefix(engine, count)
        others, problems = zip(*pairs, strict=True)
        decode(engine, [engine.create_session(problem.question) for problem in others])
        for name in ["approximate", "approximate, asked again"] if stored else ["none"]:
            found = decode(engine, [engine.create_session(problem.question) for problem in problems])
            reference = reference or found.results
            both = list(zip(found.results, reference, strict=True))
            tokens = [pair for a, b in both for pair in zip_longest(a.token_ids, b.token_ids)]
            solved = [is_correct(p, r.text or "") for p, r in zip(problems, found.results, strict=True)]
            rows.append(
                [
                    *common_cells(name, found),
                    f"{100 * sum(a == b for a, b in tokens) / len(tokens):.1f} %",
                    f"{sum(a.token_ids == b.token_ids for a, b in both)} of {count}",
                    f"{100 * sum(solved) / count:.0f} %",
                ]
            )
    return rows


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=int, default=512, help="tokens that all prompts begin with")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--problems", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("\n" + markdown_table(exact_rows(arguments.shared, arguments.requests)))
    print("\n" + markdown_table(approximate_rows(arguments.problems)))


if __name__ == "__main__":
    main()
