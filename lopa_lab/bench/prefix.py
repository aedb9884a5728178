"""`lopa bench prefix`: what stored prefixes bring, and what the approximate ones change."""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lopa_lab.bench.decoding import results_of, same_tokens_percent, solved
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.word_problems import Problem, training_problems
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.result import GenerationResult, TraceStep
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.checkpoint_config import load_config
from lopa_ray.model.weights import random_model
from lopa_ray.scheduling.prefix_index import GRANULARITY

SEED = 5
UNIQUE_TOKENS = 16
"""At the end of each prompt of block diffusion."""

CANDIDATES = 60_000
"""Problems among which to look for prompts that begin with the same tokens; few do, and held-out ones are rare."""

SHAPE: dict[str, Any] = {
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


def _decode(engine: LocalEngine, sessions: Sequence[DecodeSession]) -> tuple[list[GenerationResult], Row]:
    """Decode one after the other. Returns the results, and the columns that rows of both parts have."""
    index, results = engine.prefix_index, list[GenerationResult]()
    hits_before, positions_before = index.hit_requests, index.hit_positions
    first_token_s: list[float] = []
    total_s: list[float] = []
    for session in sessions:
        began = time.process_time()

        def on_step(_: int, step: TraceStep, began: float = began, at: int = len(first_token_s)) -> None:
            if step.fills and len(first_token_s) == at:
                first_token_s.append(time.process_time() - began)

        results += results_of(engine, [session], on_step=on_step)
        total_s.append(time.process_time() - began)
    return results, {
        "requests": len(results),
        "found": index.hit_requests - hits_before,
        "positions saved": index.hit_positions - positions_before,
        "first token ms": 1000 * statistics.median(first_token_s),
        "answer ms": 1000 * statistics.median(total_s),
        "tokens/s": sum(result.tokens for result in results) / sum(total_s),
    }


def _exact_rows(shared: int, requests: int) -> Iterator[Row]:
    """Block diffusion on random weights."""
    shape = dataclasses.replace(load_config(DEMO_MODEL), **SHAPE)
    model = random_model(shape, SEED, torch.float32, "cpu")
    rng = random.Random(SEED)
    prefix = [rng.randrange(2, 4000) for _ in range(shared)]
    prompts = [prefix + [rng.randrange(2, 4000) for _ in range(UNIQUE_TOKENS)] for _ in range(requests)]
    settings = BlockDiffusionSettings(max_new_tokens=32, fuse_store=True, ignore_eos=True)
    length = shared + UNIQUE_TOKENS + settings.max_new_tokens
    reference: list[GenerationResult] = []
    for variant in ("none", "exact"):
        config = Config.parse({"model": {"max_model_len": length, "prefix_cache": variant}})
        engine = LocalEngine(
            config, BranchRunner(model, max_num_seqs=config.model.max_num_seqs, max_model_len=length), None
        )
        results, figures = _decode(engine, [engine.create_session(prompt, settings) for prompt in prompts])
        reference = reference or results
        yield {
            "decoder": "block_diffusion",
            "prefix cache": variant,
            **figures,
            "same tokens %": same_tokens_percent(results, reference),
        }


def _pairs_with_common_prefix(engine: LocalEngine, count: int) -> list[tuple[Problem, Problem]]:
    """Different problems whose prompts begin with the same tokens, as many as an approximate prefix must have."""
    first: dict[tuple[int, ...], Problem] = {}
    pairs: list[tuple[Problem, Problem]] = []
    for problem in itertools.islice(training_problems(SEED), CANDIDATES):
        begin = tuple(engine.create_session(problem.question).prompt[:GRANULARITY])
        other = first.pop(begin, None)
        if other is None:
            first[begin] = problem
        else:
            pairs.append((other, problem))
            if len(pairs) == count:
                return pairs
    raise SettingsError(
        f"--problems: {CANDIDATES} problems have {len(pairs)} such pairs, fewer than {count}; ask for fewer"
    )


def _approximate_rows(count: int) -> Iterator[Row]:
    """LoPA under full attention on word problems, each after another one that begins with the same tokens."""
    pairs: list[tuple[Problem, Problem]] = []
    reference: list[GenerationResult] = []
    for stored in ({}, {"prefix_cache": "approximate"}):
        engine = LocalEngine.from_config(Config.load("demo", {"model": stored}))
        pairs = pairs or _pairs_with_common_prefix(engine, count)
        others, problems = zip(*pairs, strict=True)
        _decode(engine, [engine.create_session(problem.question) for problem in others])
        for name in ["approximate", "approximate, asked again"] if stored else ["none"]:
            results, figures = _decode(engine, [engine.create_session(p.question) for p in problems])
            reference = reference or results
            both = zip(results, reference, strict=True)
            yield {
                "decoder": "lopa",
                "prefix cache": name,
                **figures,
                "same tokens %": same_tokens_percent(results, reference),
                "same answers": sum(a.token_ids == b.token_ids for a, b in both),
                "solved %": 100 * sum(solved(problems, results)) / count,
            }


def measure_prefixes(shared: int, requests: int, problems: int) -> Measurements:
    """`shared`: tokens that the prompts of block diffusion begin with.

    Raises SettingsError for more problems than there are pairs with a common beginning.
    """
    torch.set_num_threads(1)
    rows = [*_exact_rows(shared, requests), *_approximate_rows(problems)]
    return Measurements(
        ("decoder", "prefix cache"),
        rows,
        "Processor time of one thread, medians over requests that are decoded one after the other. "
        f"block_diffusion: random weights, 4 layers of 1024, prompts that share all but {UNIQUE_TOKENS} of "
        f"{shared + UNIQUE_TOKENS} tokens. lopa: the preset demo on training problems, each after another one that "
        f"begins with the same {GRANULARITY} tokens, and once more. Tokens and answers are compared "
        "with those without a cache.",
    )
