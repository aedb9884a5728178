"""`lopa bench decode`: whole generations, one row per combination of settings."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any, TypeAlias

import yaml

from cluster.batch.open_engine import open_engine
from cluster.command_line.options import ConfigOverrides
from lopa_lab.bench.decoding import random_prompt, results_of, same_tokens_percent, solved
from lopa_lab.bench.measurements import Measurements, Row, percentile_ms
from lopa_lab.word_problems import Problem, held_out_problems
from lopa_ray.config.yaml_files import parse_yaml
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.session_factory import Prompt
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary

SEED = 2
"""The seed of problems and random prompts."""

TOP = 10
"""How many of the fastest requests the column `TPS top 10` averages."""

COLUMNS = {"group.num_workers": "workers"}
"""Names of settings in tables, where these differ from the settings' own names."""

Combination: TypeAlias = dict[str, Any]
"""Setting with its section → value."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests that a measurement decodes."""

    requests: int
    concurrency: int
    """Requests in flight together; with 1 no other request adds to a latency."""
    random_prompt: int | None
    """Tokens of random prompts; None: word problems, whose answers are checked."""
    held_out_words: bool = False
    """Word problems in words that the model in the package was not trained on."""

    def prompts(self, vocabulary: Vocabulary) -> list[Prompt]:
        """The prompts of all requests."""
        if self.random_prompt is None:
            return [problem.question for problem in self.problems]
        draw = random.Random(SEED)
        return [random_prompt(draw, vocabulary, self.random_prompt) for _ in range(self.requests)]

    @property
    def problems(self) -> list[Problem]:
        """Held-out problems of the model in the package."""
        return held_out_problems(SEED, self.requests, self.held_out_words)

    @property
    def description(self) -> str:
        """A description of the prompts, for the notes below a table."""
        if self.random_prompt is not None:
            return f"random prompts of {self.random_prompt} tokens"
        return "held-out word problems" + (" in held-out words" if self.held_out_words else "")


def parse_variations(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Settings and the values that they take, from `section.key=value,value` texts. Raises SettingsError."""
    variations: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key and values):
            raise SettingsError(
                f"--vary: got {text!r}; allowed: SECTION.KEY=VALUE,VALUE, as in decode.num_branches=1,4,8"
            )
        try:
            variations[f"{section}.{key}"] = tuple(map(parse_yaml, values.split(",")))
        except yaml.YAMLError:
            raise SettingsError(f"--vary {name}: got {values!r}, which are not YAML values") from None
    return variations


def combinations_of(variations: dict[str, tuple[Any, ...]]) -> list[Combination]:
    """All combinations; combinations that share an engine are next to each other."""
    names = sorted(variations, key=lambda name: name.startswith("decode."))
    all_values = product(*(variations[name] for name in names))
    return [dict(zip(names, values, strict=True)) for values in all_values]


def measure_decodes(
    name: str,
    values: dict[str, Any],
    overrides: ConfigOverrides,
    combinations: Sequence[Combination],
    workload: Workload,
    *,
    local: bool,
) -> Measurements:
    """Decode the workload once for each combination of settings.

    `values`: the configuration that `overrides` and then a combination change.

    Raises SettingsError for a combination that cannot be, and what engines raise.
    """
    rows: list[Row] = []
    reference: list[GenerationResult] = []
    configs = [(each, _config(values, overrides, each, workload)) for each in combinations]
    # Neighbours that differ in decode settings alone have one engine.
    for _, neighbours in groupby(configs, key=lambda pair: (pair[1].model, pair[1].group)):
        together = list(neighbours)
        with open_engine(together[0][1], local=local) as engine:
            for combination, config in together:
                results = _decode(engine, config, workload)
                reference = reference or results
                same = same_tokens_percent(results, reference)
                rows.append(
                    {
                        "model": name,
                        "decoder": config.decode.decoder,
                        "workers": 0 if local else config.group.num_workers,
                        **_varied(combination),
                        **_figures(workload, results),
                        "same tokens %": same,
                    }
                )
    varied = _varied(combinations[0]) if combinations else {}
    return Measurements(
        tuple(dict.fromkeys(("model", "decoder", "workers", *varied))),
        rows,
        f"{workload.requests} requests, in waves of {workload.concurrency}, {workload.description}. "
        "TPS: tokens up to and including the first EOS ÷ seconds, of each request; its mean, its maximum and the mean "
        f"of the {TOP} fastest. TPF: tokens of all requests ÷ steps of all. Latency by wall time. workers 0: in this "
        "process. same tokens: positions with the first row's tokens.",
    )


def _config(
    values: dict[str, Any], overrides: ConfigOverrides, combination: Combination, workload: Workload
) -> Config:
    changes = {section: dict(settings) for section, settings in overrides.items()}
    changes.setdefault("model", {})["max_num_seqs"] = workload.concurrency
    for setting, value in combination.items():
        section, _, key = setting.partition(".")
        changes.setdefault(section, {})[key] = value
    return Config.parse(dict(values), changes)


def _decode(engine: Engine, config: Config, workload: Workload) -> list[GenerationResult]:
    prompts = workload.prompts(engine.vocabulary)
    sessions = [engine.create_session(prompt, config.decode) for prompt in prompts]
    # The first requests compile, allocate, and fill caches.
    list(engine.run([engine.create_session(prompts[0], config.decode)]))
    results: list[GenerationResult] = []
    for first in range(0, len(sessions), workload.concurrency):
        results += results_of(engine, sessions[first : first + workload.concurrency])
    return results


def _varied(combination: Combination) -> Row:
    """The columns of the settings that are varied."""
    return {
        COLUMNS.get(setting, setting.partition(".")[2]): value
        if isinstance(value, int | float | None)
        else str(value)
        for setting, value in combination.items()
    }


def _figures(workload: Workload, results: Sequence[GenerationResult]) -> Row:
    speeds = sorted((result.tps for result in results), reverse=True)
    latencies = sorted(result.seconds for result in results)
    words = workload.random_prompt is None
    steps = sum(result.steps for result in results)
    return {
        "solved %": 100 * statistics.fmean(solved(workload.problems, results)) if words else None,
        "TPF": sum(result.tokens for result in results) / steps,
        "forwards per step": sum(result.forwards for result in results) / steps,
        "TPS": statistics.fmean(speeds),
        "TPS max": speeds[0],
        f"TPS top {TOP}": statistics.fmean(speeds[:TOP]),
        "latency p50 ms": percentile_ms(latencies, 0.5),
        "latency max ms": percentile_ms(latencies, 1.0),
    }
