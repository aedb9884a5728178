"""`lopa bench quantization`: what number formats change: error of the logits, tokens that differ, problems solved."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass
class DecodedFormat:
    """One number format on all problems."""

    results: list[GenerationResult]
    logits: list[Tensor]
    """Per canvas fp32 [rows that decide masked positions, V]."""
    megabytes: float


def _decode(engine: LocalEngine, problems: list[Problem], canvases: list[list[int]]) -> DecodedFormat:
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
    parameters = cast(nn.Module, model).parameters()
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return DecodedFormat(results, logits, size / 1e6)


def measure_formats(model: str, formats: Sequence[tuple[str, Quantization]], problems: int) -> Measurements:
    """Decode held-out word problems with the preset `demo` in each format (dtype, quantization), and compare with the
    first one. Raises CheckpointError and SettingsError."""
    torch.set_num_threads(1)
    chosen, canvases = held_out_problems(SEED, problems), list[list[int]]()
    reference: DecodedFormat | None = None
    rows: list[Row] = []
    for dtype, quantization in formats:
        changes = {"model": {"path": model, "dtype": dtype, "quantization": quantization}}
        decoded = _decode(LocalEngine.from_config(Config.load("demo", changes)), chosen, canvases)
        reference = reference or decoded
        ours, theirs = torch.cat(decoded.logits), torch.cat(reference.logits)
        tokens, steps = sum(r.tokens for r in decoded.results), sum(r.steps for r in decoded.results)
        rows.append(
            {
                "model": model,
                "dtype": dtype,
                "quantization": quantization,
                "MB": decoded.megabytes,
                "error of logits %": 100 * ((ours - theirs).norm() / theirs.norm()).item(),
                "largest error": (ours - theirs).abs().max().item(),
                "same first choice %": 100 * (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item(),
                "same tokens %": same_tokens_percent(decoded.results, reference.results),
                "solved %": 100 * sum(solved(chosen, decoded.results)) / problems,
                "TPF": tokens / steps,
            }
        )
    return Measurements(
        ("model", "dtype", "quantization"),
        rows,
        f"{problems} held-out word problems with the preset demo, each format against the first one. Logits are "
        "compared on canvases of which a random half is masked. `lopa bench forward --dtype ... --quantization "
        "...` has times.",
    )
