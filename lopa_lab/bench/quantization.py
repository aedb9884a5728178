"""`lopa bench quantization`: what number formats change: error of the logits, tokens that differ, problems solved."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lopa_lab.bench.decoding import same_tokens_percent, solved
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.word_problems import Problem, held_out_problems
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.model.config import Quantization

SEED = 2


def _masked_canvases(
    engine: LocalEngine, problems: Sequence[Problem], results: Sequence[GenerationResult]
) -> list[list[int]]:
    """Token ids of each prompt with its answer, of which a random half is masked."""
    draw, mask_token_id = random.Random(SEED), engine.vocabulary.mask_token_id
    canvases = []
    for problem, result in zip(problems, results, strict=True):
        answer = [mask_token_id if draw.random() < 0.5 else token for token in result.token_ids]
        canvases.append([*engine.create_session(problem.question).prompt, *answer])
    return canvases


def _masked_logits(engine: LocalEngine, canvases: Sequence[Sequence[int]]) -> Tensor:
    """fp32 [rows that decide masked positions of all canvases, V]."""
    config, logits = engine.runner.model.config, []
    for ids in canvases:
        masked = [p for p, token in enumerate(ids) if token == config.mask_token_id]
        logits.append(engine.runner.logits(list(ids))[[p - int(config.shifted) for p in masked]])
    return torch.cat(logits)


def measure_formats(model: str, formats: Sequence[tuple[str, Quantization]], problems: int) -> Measurements:
    """Decode held-out word problems with the preset `demo` in each format (dtype, quantization), and compare with the
    first one. Raises CheckpointError and SettingsError."""
    torch.set_num_threads(1)
    chosen, canvases = held_out_problems(SEED, problems), list[list[int]]()
    reference: tuple[list[GenerationResult], Tensor] | None = None
    rows: list[Row] = []
    for dtype, quantization in formats:
        changes = {"model": {"path": model, "dtype": dtype, "quantization": quantization}}
        engine = LocalEngine.from_config(Config.load("demo", changes))
        results = engine.generate([problem.question for problem in chosen])
        canvases = canvases or _masked_canvases(engine, chosen, results)
        ours = _masked_logits(engine, canvases)
        first_results, theirs = reference = reference or (results, ours)
        parameters = cast(nn.Module, engine.runner.model).parameters()
        rows.append(
            {
                "model": model,
                "dtype": dtype,
                "quantization": quantization,
                "MB": sum(p.numel() * p.element_size() for p in parameters) / 1e6,
                "error of logits %": 100 * ((ours - theirs).norm() / theirs.norm()).item(),
                "largest error": (ours - theirs).abs().max().item(),
                "same first choice %": 100 * (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item(),
                "same tokens %": same_tokens_percent(results, first_results),
                "solved %": 100 * sum(solved(chosen, results)) / problems,
                "TPF": sum(r.tokens for r in results) / sum(r.steps for r in results),
            }
        )
    return Measurements(
        ("model", "dtype", "quantization"),
        rows,
        f"{problems} held-out word problems with the preset demo, each format against the first one. Logits are "
        "compared on canvases of which a random half is masked. `lopa bench forward --dtype ... --quantization "
        "...` has times.",
    )
