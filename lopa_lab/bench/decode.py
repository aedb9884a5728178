"""`lopa bench decode`: whole generations, one row per combination of settings."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from typing import Any, TypeAlias

import torch
import yaml

from cluster.batch.open_engine import open_engine
from cluster.command_line.options import ConfigOverrides
from lopa_lab.bench.clock import Clock
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
    concurrency: Sequence[int]
    """Numbers of requests in flight together; with 1 no other request adds to a latency."""
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


@dataclass(slots=True)
class _Turns:
    """What one combination decodes, block by block: so many requests as slots, in waves of the concurrency."""

    combination: Combination
    config: Config
    concurrency: int
    results: dict[int, list[GenerationResult]] = field(default_factory=dict)
    """Block → its results in all rounds."""
    seconds: dict[int, list[float]] = field(default_factory=dict)
    """Block → the time of each round."""

    def decode(self, engine: Engine, block: int, prompts: Sequence[Prompt], now: Callable[[], float]) -> None:
        sessions = [engine.create_session(prompt, self.config.decode) for prompt in prompts]
        began = now()
        for first in range(0, len(sessions), self.concurrency):
            wave = sessions[first : first + self.concurrency]
            self.results.setdefault(block, []).extend(results_of(engine, wave))
        self.seconds.setdefault(block, []).append(now() - began)

    def of_first_round(self) -> list[GenerationResult]:
        """In the order of the prompts."""
        return [
            result
            for block, results in self.results.items()
            for result in results[: len(results) // len(self.seconds[block])]
        ]

    @property
    def tokens_per_s(self) -> float:
        tokens = sum(result.tokens for result in self.of_first_round())
        return tokens / sum(map(statistics.median, self.seconds.values()))


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
    rounds: int,
    threads: int | None,
) -> Measurements:
    """Decode the workload in so many rounds, in which all combinations of settings with the same engine take turns.

    `values`: the configuration that `overrides` and then a combination change. `threads`: of torch in this process;
    None: its default.

    Raises SettingsError for a combination that cannot be, and what engines raise.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    clock = Clock(torch.device("cpu"))
    now, kind = (clock.now, clock.kind) if local else (time.perf_counter, "wall time")
    rows: list[Row] = []
    reference: list[GenerationResult] = []
    slots = max(workload.concurrency)
    configs = [(each, _config(values, overrides, each, slots)) for each in combinations]
    # Neighbours that differ in decode settings alone have one engine.
    for _, neighbours in groupby(configs, key=lambda pair: (pair[1].model, pair[1].group)):
        together = [_Turns(*pair, number) for pair in neighbours for number in workload.concurrency]
        with open_engine(together[0].config, local=local) as engine:
            prompts = workload.prompts(engine.vocabulary)
            for turns in together:  # The first requests compile, allocate, and fill caches.
                replace(turns, results={}, seconds={}).decode(engine, 0, prompts[:1], now)
            for _, block in product(range(rounds), range(0, len(prompts), slots)):
                for turns in together:
                    turns.decode(engine, block, prompts[block : block + slots], now)
        for turns in together:
            reference = reference or turns.of_first_round()
            rows.append(
                {
                    "model": name,
                    "decoder": turns.config.decode.decoder,
                    "workers": 0 if local else turns.config.group.num_workers,
                    **_varied(turns.combination),
                    "concurrency": turns.concurrency,
                    "tokens/s": turns.tokens_per_s,
                    **_figures(workload, turns),
                    "same tokens %": same_tokens_percent(turns.of_first_round(), reference),
                }
            )
    varied = _varied(combinations[0]) if combinations else {}
    return Measurements(
        tuple(dict.fromkeys(("model", "decoder", "workers", *varied, "concurrency"))),
        rows,
        f"{workload.requests} requests, in waves of the concurrency, {workload.description}. tokens/s: of all requests "
        f"÷ the {kind} of all waves, of which each is the median of {rounds} rounds in turns. TPS: tokens up to and "
        "including the first EOS ÷ seconds, of each request; its mean, its maximum and the mean "
        f"of the {TOP} fastest. TPF: tokens of all requests ÷ steps of all. Latency by wall time. workers 0: in this "
        "process. same tokens: positions with the first row's tokens.",
    )


def _config(
    values: dict[str, Any], overrides: ConfigOverrides, combination: Combination, slots: int
) -> Config:
    changes = {section: dict(settings) for section, settings in overrides.items()}
    changes.setdefault("model", {})["max_num_seqs"] = slots
    for setting, value in combination.items():
        section, _, key = setting.partition(".")
        changes.setdefault(section, {})[key] = value
    return Config.parse(dict(values), changes)


def _varied(combination: Combination) -> Row:
    """The columns of the settings that are varied."""
    return {
        COLUMNS.get(setting, setting.partition(".")[2]): value
        if isinstance(value, int | float | None)
        else str(value)
        for setting, value in combination.items()
    }


def _figures(workload: Workload, turns: _Turns) -> Row:
    results = turns.of_first_round()
    timed = [result for of_block in turns.results.values() for result in of_block]
    speeds = sorted((result.tps for result in timed), reverse=True)
    latencies = sorted(result.seconds for result in timed)
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
