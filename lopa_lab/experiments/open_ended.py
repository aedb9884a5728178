"""`lopa experiment open-ended`: How do decoders write text without a checkable answer?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any, ClassVar

from lopa_lab.experiments.run.drawing import draw_over_tpf
from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.intervals import Array, estimate
from lopa_lab.records.points_log import Point
from lopa_lab.requests import answered
from lopa_lab.word_problems import held_out_stream
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.likelihood import LikelihoodRequest, log_likelihoods

LENGTH = 48
OPEN_QUESTION = "How much is that?"
"""An open question after a story, in words from the training data of the model in the package."""
MC_NUM = 16
"""Draws of masks per log-likelihood."""
N_GRAM = 2
VANILLA = 0
"""Stands for vanilla decoding among numbers of branches."""
DECODERS = (VANILLA, 1, 2, 4, 8, 16)


def open_prompt(question: str) -> str | None:
    """A problem's text with `OPEN_QUESTION` in the place of its own, the last sentence; None if it has one alone."""
    *story, _ = re.split(r"(?<=[.?!])\s+", question.strip())
    return " ".join([*story, OPEN_QUESTION]) if story else None


def open_prompts(seed: int, count: int) -> list[str]:
    """Open prompts of the first held-out problems that have one."""
    prompts = (open_prompt(problem.question) for problem in held_out_stream(seed))
    return list(islice((prompt for prompt in prompts if prompt is not None), count))


def equal_tokens(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, int]:
    """Positions with the same token in both texts, and positions of the longer one."""
    return sum(a == b for a, b in zip(ours, theirs, strict=False)), max(len(ours), len(theirs))


def count_n_grams(ids: Sequence[int], n: int = N_GRAM) -> tuple[int, int]:
    """Different n-grams, and all."""
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return len(set(grams)), len(grams)


class OpenEnded(Experiment):
    """See the module."""

    problems = 30
    smallest: ClassVar = {"DECODERS": (0, 1, 4), "LENGTH": 16, "MC_NUM": 2}
    plot_rows = (1, 1)
    method = (
        f'Prompts are word problems that end with "{OPEN_QUESTION}" in place of their question; texts have at most '
        f"{LENGTH} tokens. vanilla: one token per step, also behind the end, so its TPF is below 1. different pairs: "
        "of neighbouring tokens ÷ all pairs. nats per token: log p(text | prompt) ÷ tokens, a Monte-Carlo bound with "
        f"{MC_NUM} draws. as vanilla: positions with vanilla's token ÷ positions of the longer text."
    )

    def points(self) -> Sequence[Point]:
        """Vanilla decoding, and LoPA by its number of branches."""
        return [{"num_branches": count} for count in DECODERS]

    def measure(self, bench: Workbench, point: Point) -> Data:
        """Numbers per prompt. Raises the first error that ends a request."""
        prompts = open_prompts(bench.setup.seed, bench.setup.problems)
        results = _texts(bench, prompts, int(point["num_branches"] or 0))
        texts = [result.token_ids for result in results]
        requests = [LikelihoodRequest(bench.engine.encode(p), t) for p, t in zip(prompts, texts, strict=True)]
        decoded = log_likelihoods(bench.engine, requests, mc_num=MC_NUM, seed=bench.setup.seed)
        likelihoods = {index: round(likelihood.value, 4) for index, likelihood in answered(decoded)}
        different, grams = zip(*map(count_n_grams, texts), strict=True)
        vanilla = [result.token_ids for result in _texts(bench, prompts, VANILLA)]
        equal, positions = zip(*map(equal_tokens, texts, vanilla), strict=True)
        return {
            "tokens": [result.tokens for result in results],
            "steps": [result.steps for result in results],
            "different n-grams": different,
            "n-grams": grams,
            "log-likelihood": [likelihoods[index] for index in range(len(requests))],
            "as vanilla": equal,
            "positions": positions,
        }

    def finding(self, record: ExperimentRecord) -> Finding:
        """Every decoder against vanilla decoding."""
        figures = {count: _figures(record, count) for count in DECODERS}
        vanilla, single = figures[VANILLA], figures[1]
        most = max(DECODERS[1:], key=lambda count: figures[count]["TPF"][0])
        best = figures[most]
        text = (
            f"LoPA is fastest with {most} branches. Its text has "
            f"{estimate(best['nats per token'] - vanilla['nats per token']):+.2f} nats per token against vanilla's and "
            f"{estimate(best['nats per token'] - single['nats per token']):+.2f} against a single branch's, and "
            f"vanilla's token at {estimate(best['as vanilla %']):.0f} % of the positions; a single branch has that at "
            f"{estimate(single['as vanilla %']):.0f} %."
        )
        table = {"decoder, branches": [f"LoPA, {count}" if count else "vanilla" for count in figures]}
        for name in vanilla:
            spec = ".1f" if name.endswith("%") else ".2f"
            table[name] = column((of_count[name] for of_count in figures.values()), spec)
        headline = (
            f"{most} branches have {estimate(best['TPF'] / single['TPF']):.2f} times the TPF of one, at "
            f"{estimate(best['nats per token'] - single['nats per token']):+.2f} nats per token, and "
            f"{estimate(best['nats per token'] - vanilla['nats per token']):+.2f} against vanilla decoding."
        )
        return Finding(text, table, headline)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Likelihood and agreement over TPF."""
        figures = {count: _figures(record, count) for count in DECODERS}

        def by_count(name: str) -> dict[int, Array]:
            return {count: of_count[name] for count, of_count in figures.items()}

        names = {VANILLA: "vanilla", 1: "1 branch"}
        lines = {names.get(count, f"{count} branches"): [count] for count in DECODERS}
        rows = {name: by_count(name) for name in ("nats per token", "as vanilla %")}
        draw_over_tpf(axes, lines, by_count("TPF"), rows)
        axes[-1].set_xlim(0, None)


def _texts(bench: Workbench, prompts: Sequence[str], num_branches: int) -> list[GenerationResult]:
    """Continuations of all prompts."""
    lopa = {"decoder": "lopa", "num_branches": num_branches}
    decoder = {"decoder": "vanilla"} if num_branches == VANILLA else lopa
    settings = bench.settings(**decoder, max_new_tokens=LENGTH)
    return bench.decode(settings, prompts)


def _figures(record: ExperimentRecord, num_branches: int) -> dict[str, Any]:
    data, quotient = record.data(num_branches=num_branches), record.resamples.quotient
    return {
        "TPF": quotient(data["tokens"], data["steps"]),
        "different pairs %": 100 * quotient(data["different n-grams"], data["n-grams"]),
        "nats per token": quotient(data["log-likelihood"], data["tokens"]),
        "as vanilla %": 100 * quotient(data["as vanilla"], data["positions"]),
    }


EXPERIMENT = OpenEnded()
