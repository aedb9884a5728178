"""`lopa bench freedave`: verified lookahead beside recorded decodes of FreeDave's public code (arXiv 2510.00294)."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from importlib.resources import files
from statistics import fmean
from typing import Any, NamedTuple

from cluster.batch.open_engine import open_engine
from lopa_lab.bench.decoding import results_of
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.word_problems import held_out_problems
from lopa_ray.engine.config import Config

SEED = 77
"""The seed of the problems that the record is of."""

MAX_NEW_TOKENS = 64

SCHEDULES = ("schedule", "vanilla")
"""Dream's own schedule with a cache and without one: FreeDave has none, and its static rule is close to it."""

BRANCHES = (1, 4, 8, 16)

METHOD = (
    "Word problems of seed 77 on a canvas of 64 tokens, with the model in the package, of which the record has decodes "
    "by FreeDave (commit 8b48121). Calls and rows (branch evaluations) are means per answer. equal: answers whose ids "
    "are all those of the same code with one branch. Rules: fast_dllm with that threshold; static: "
    "confidence_threshold 1 with steps 64, one token per call as FreeDave's; schedule: fill schedule, which FreeDave "
    "lacks; vanilla. branches: FreeDave's draft steps, the anchor included; its eager acceptance is not exact."
)


class Run(NamedTuple):
    """Settings of FreeDave, or of decodes that stand beside its."""

    rule: str
    """vanilla, schedule, static, or a threshold."""
    cache: str
    block_size: int
    branches: int
    acceptance: str = "exact"

    @classmethod
    def of(cls, name: str) -> Run:
        """The run that the record calls so."""
        cache, block, rule, drafts, *eager = name.split("-")
        return cls(rule, cache, int(block[1:]), max(1, int(drafts[1:])), *eager)

    def config(self, values: dict[str, Any]) -> Config:
        """The same rule of this package, with verified lookahead."""
        decode: dict[str, Any] = {
            "max_new_tokens": MAX_NEW_TOKENS,
            "ranking": "probability",
            "stop_at_eos": False,
            "block_size": self.block_size,
        }
        if self.rule == "vanilla":
            decode |= {"decoder": "vanilla", "steps": MAX_NEW_TOKENS}
        else:
            decode |= {"decoder": "fast_dllm", "cache": self.cache}
            if self.rule == "schedule":
                decode |= {"fill": "schedule", "steps": MAX_NEW_TOKENS}
            elif self.rule == "static":
                decode |= {"confidence_threshold": 1.0, "steps": MAX_NEW_TOKENS}
            else:
                decode["confidence_threshold"] = float(self.rule)
        if self.branches > 1:
            decode |= {"num_branches": self.branches, "lookahead": "verified"}
        return Config.parse(values, {"decode": decode})


class Answers(NamedTuple):
    """The answers of a run, in the order of the problems."""

    token_ids: Sequence[tuple[int, ...]]
    calls: Sequence[int]
    rows: Sequence[int]

    def figures(self, alone: Answers | None, who: str) -> Row:
        """Columns; `alone`: the answers with one branch."""
        pairs = [] if alone is None else zip(self.token_ids, alone.token_ids, strict=False)
        return {
            f"{who}calls": fmean(self.calls),
            f"{who}rows": fmean(self.rows),
            f"{who}equal": sum(one == other for one, other in pairs),
        }


def recorded_answers() -> dict[Run, Answers]:
    """What FreeDave's code decoded."""
    packed = files(__package__).joinpath("freedave_record", "record.jsonl.gz").read_bytes()
    lines = defaultdict(list)
    for line in gzip.decompress(packed).decode().splitlines():
        of_problem = json.loads(line)
        lines[Run.of(of_problem["run"])].append(of_problem)
    return {
        run: Answers(
            [tuple(line["token_ids"]) for line in of_run],
            [line["calls"] for line in of_run],
            [line["rows"] for line in of_run],
        )
        for run, of_run in lines.items()
    }


def measure_freedave(values: dict[str, Any], problems: int, rules: Sequence[str]) -> Measurements:
    """Decode the problems of each recorded run of these rules, `problems` at most. Raises what engines raise."""
    recorded = recorded_answers()
    runs = list(recorded)
    for rule, cache in zip(SCHEDULES, ("prefix", "none"), strict=True):
        runs += [Run(rule, cache, 32, branches) for branches in BRANCHES]
    decoded: dict[Run, Answers] = {}
    rows: list[Row] = []
    questions = [problem.question for problem in held_out_problems(SEED, problems)]
    with open_engine(Config.parse(values), local=True) as engine:
        for run in runs:
            if run.rule not in rules:
                continue
            theirs = recorded.get(run)
            count = problems if theirs is None else min(problems, len(theirs.calls))
            figures: Row = {"problems": count}
            if theirs is not None:
                theirs = Answers(theirs.token_ids[:count], theirs.calls[:count], theirs.rows[:count])
                figures |= theirs.figures(recorded[run._replace(branches=1, acceptance="exact")], "FreeDave ")
            if run.acceptance == "exact":
                settings = run.config(values).decode
                results = results_of(engine, [engine.create_session(q, settings) for q in questions[:count]])
                decoded[run] = ours = Answers(
                    [tuple(result.token_ids) for result in results],
                    [result.steps for result in results],
                    [result.forwards for result in results],
                )
                figures |= ours.figures(decoded.get(run._replace(branches=1)), "")
            rows.append({**run._asdict(), **figures})
    return Measurements(Run._fields, rows, METHOD)
