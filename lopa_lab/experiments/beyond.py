"""`lopa experiment beyond`: Does another lookahead beat the published one?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from random import Random
from typing import Any, ClassVar

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.lookaheads import (
    DistantForks,
    ForksOfForks,
    MakeLookahead,
    SecondTokens,
    WithoutAnchor,
    varied_by,
)
from lopa_lab.experiments.run.outcomes import Outcomes
from lopa_lab.experiments.run.setup import Setup
from lopa_lab.experiments.run.winner_rules import (
    LinearPredictor,
    RandomWinner,
    WinnerRecorder,
    by_value,
    expected_fills,
    fit_predictor,
    summed_probability,
)
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import MARKERS, PALETTE, error_bars
from lopa_lab.records.intervals import FEWEST_PROBLEMS, Estimate, Resamples, estimate
from lopa_lab.records.points_log import Point
from lopa_lab.word_problems import held_out_problems, training_problems
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.session import DecodeSession

BRANCHES = 8
SEEDS = (0, 1)
"""Added to the run's seed."""
BLOCK_SIZES = (16, 32)
HIGHER_THRESHOLD = 0.95
TRAINING_PROBLEMS = 200
"""Problems that the learned predictor is fitted on."""

FASTER, MORE_POINTS = 1.10, 2.0
"""The bar: times LoPA's TPF at equal score, or points of score at equal TPF."""
EQUAL_POINTS = -2.0
"""A score is equal if its interval over all cells together lies above this, and no cell's lies below 0."""

LOPA = "LoPA"
LEARNED = ("learned predictor", "two tokens, learned predictor")
"""Variants whose winner a predictor chooses that is fitted before."""
LOOKAHEADS: dict[str, MakeLookahead] = {
    "forks of forks": ForksOfForks,
    "distant forks": DistantForks,
    "second-best tokens": SecondTokens,
    "without the anchor": WithoutAnchor,
    "winner by expected fills": by_value(expected_fills),
    "winner by summed probability": by_value(summed_probability),
    "two tokens, summed probability": by_value(summed_probability),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "two tokens per fork": {"tokens_per_fork": 2},
    "two tokens, higher threshold": {"tokens_per_fork": 2, "confidence_threshold": HIGHER_THRESHOLD},
    "without the anchor": {},
    "second-best tokens": {"top_logprobs": 2},
    "two tokens, summed probability": {"tokens_per_fork": 2},
    "two tokens, learned predictor": {"tokens_per_fork": 2},
    "verified, exact": {"lookahead": "verified"},
    "verified, relaxed": {"lookahead": "verified", "acceptance": 0.5},
}
"""Changes of settings, by variant."""
VARIANTS = (LOPA, *dict.fromkeys((*SETTINGS, *LOOKAHEADS, *LEARNED)))


class Beyond(Experiment):
    """See the module."""

    problems = 100
    smallest: ClassVar = {"SEEDS": (0,), "BLOCK_SIZES": (16,), "TRAINING_PROBLEMS": 2}
    method = (
        f"LoPA with {BRANCHES} branches, and lookaheads that evaluate no more, with blocks of "
        f"{' and '.join(map(str, BLOCK_SIZES))}. two tokens: tokens_per_fork 2. higher threshold: {HIGHER_THRESHOLD}. "
        "forks of forks: half of the forks add one token and half two. distant: forks lie as far apart as the "
        "best-ranked positions allow. second-best: one fork in three adds the second-best token of a position. "
        "expected fills: the winner decides most tokens in this step. summed probability: the winner has the largest "
        "sum of its fork's tokens and the probabilities at masked positions. learned predictor: the winner has the "
        "most tokens in this step and, predicted from its scores, in the next. verified: drafts of the rule's next "
        f"steps, exact or with acceptance 0.5. The bar, for each seed and block size: at least {FASTER:.2f} times "
        f"LoPA's TPF at a score that is not clearly lower (over all at most {-EQUAL_POINTS:.0f} points), or at least "
        f"{MORE_POINTS:.0f} points of score more, clearly, at a TPF that is not clearly lower."
    )

    def describe_problems(self, setup: Setup) -> str:
        """The number of problems of each seed."""
        seeds = " and ".join(str(setup.seed + seed) for seed in SEEDS)
        return f"{setup.problems} problems of each of the seeds {seeds}"

    def points(self) -> Sequence[Point]:
        """Each variant on each seed with each size of blocks."""
        return [
            {"seed": seed, "block_size": size, "variant": variant}
            for seed, size, variant in product(SEEDS, BLOCK_SIZES, VARIANTS)
        ]

    def measure(self, bench: Workbench, point: Point) -> Data:
        variant, seed = str(point["variant"]), bench.setup.seed + int(point["seed"] or 0)
        settings = bench.settings(
            decoder="lopa", num_branches=BRANCHES, block_size=point["block_size"], **SETTINGS.get(variant, {})
        )
        lookahead = LOOKAHEADS.get(variant)
        if variant in LEARNED:
            lookahead = by_value(_learn(bench, settings, seed))
        problems = held_out_problems(seed, bench.setup.problems)
        return bench.decode_problems(settings, varied_by(lookahead, seed), problems)

    def finding(self, record: ExperimentRecord) -> Finding:
        """Each variant against LoPA, in each cell and over all."""
        cells = {name: _against_lopa(record, name) for name in VARIANTS[1:]}
        enough = record.setup.problems >= FEWEST_PROBLEMS
        whole = {name: _together(record, name) for name in VARIANTS}
        resamples = Resamples(len(SEEDS) * record.setup.problems)
        tpf = {name: outcomes.tpf(resamples) for name, outcomes in whole.items()}
        score = {name: outcomes.score(resamples) / len(BLOCK_SIZES) for name, outcomes in whole.items()}
        ratio = {name: estimate(tpf[name] / tpf[LOPA]) for name in VARIANTS}
        gain = {name: estimate(score[name] - score[LOPA]) for name in VARIANTS}
        winners = [name for name, of_name in cells.items() if enough and meets_bar(of_name, gain[name])]
        bar = "No lookahead meets the bar in every cell. "
        if winners:
            meet = "meets" if len(winners) == 1 else "meet"
            names = " and ".join(f'"{name}"' for name in winners)
            bar = f"{names} {meet} the bar in every cell. "
        elif not enough:
            bar = f"Fewer than {FEWEST_PROBLEMS} problems per cell do not tell whether a lookahead meets the bar. "
        fastest = max(VARIANTS[1:], key=lambda name: ratio[name].value)
        text = (
            f"LoPA has {estimate(tpf[LOPA]):.2f} TPF at {estimate(score[LOPA]):.1f} % solved, over all cells. {bar}The "
            f"fastest, {fastest}, has {ratio[fastest]:.2f} times LoPA's TPF at {gain[fastest]:+.1f} points."
        )
        verdicts = {name: "yes" if name in winners else "no" if enough else "–" for name in VARIANTS[1:]}
        table = {
            "lookahead": VARIANTS,
            "÷ LoPA's TPF": [f"{ratio[name]:.2f}" for name in VARIANTS],
            "points of score": [f"{gain[name]:+.1f}" for name in VARIANTS],
        }
        table["meets the bar"] = ["", *verdicts.values()]
        headline = f"The fastest, {fastest}, has {ratio[fastest]:.2f} times LoPA's TPF at {gain[fastest]:+.1f} points. "
        return Finding(text, table, f"{headline}{bar}".rstrip())

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Score against TPF, of all cells together, with intervals."""
        resamples = Resamples(len(SEEDS) * record.setup.problems)
        for index, name in enumerate(VARIANTS):
            whole = _together(record, name)
            tpf, score = estimate(whole.tpf(resamples)), estimate(whole.score(resamples) / len(BLOCK_SIZES))
            marker = MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]
            color = PALETTE[index % len(PALETTE)]
            error_bars(axes[0], [tpf], [score], 0, color=color, fmt=marker, linewidth=1, label=name)
        axes[0].set(xlabel="TPF", ylabel="solved, %")
        axes[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def meets_bar(cells: Sequence[tuple[Estimate, Estimate]], points_of_all: Estimate) -> bool:
    """Whether a variant has one of the two gains in every cell: (TPF ÷ LoPA's, score - LoPA's in points).

    `points_of_all` are the points over all cells together.
    """
    faster = points_of_all.low >= EQUAL_POINTS and all(
        ratio.value >= FASTER and ratio.low > 1 and points.high >= 0 for ratio, points in cells
    )
    better = all(
        points.value >= MORE_POINTS and points.low > 0 and ratio.high >= 1 for ratio, points in cells
    )
    return faster or better


def _learn(bench: Workbench, settings: GenerationSettings, seed: int) -> LinearPredictor:
    """Learn from training problems, which no held-out problem is among."""
    recorders: list[WinnerRecorder] = []

    def make(session: DecodeSession, index: int) -> DecodeSession:
        recorders.append(WinnerRecorder(session, RandomWinner, Random(f"learn {seed} {index}")))
        return recorders[-1]

    bench.decode_problems(settings, make, list(islice(training_problems(seed), TRAINING_PROBLEMS)))
    return fit_predictor(recorders)


def _against_lopa(record: ExperimentRecord, name: str) -> list[tuple[Estimate, Estimate]]:
    """TPF ÷ LoPA's and score - LoPA's of each cell."""
    cells = []
    for seed, size in product(SEEDS, BLOCK_SIZES):
        own, lopa = (record.outcomes(seed=seed, block_size=size, variant=of) for of in (name, LOPA))
        ratio = estimate(own.tpf(record.resamples) / lopa.tpf(record.resamples))
        cells.append((ratio, estimate(own.score(record.resamples) - lopa.score(record.resamples))))
    return cells


def _together(record: ExperimentRecord, name: str) -> Outcomes:
    """Sums over the sizes of blocks of each problem, of both seeds: `correct` counts up to the number of sizes."""
    columns: dict[str, list[int]] = {}
    for seed in SEEDS:
        of_seed = [record.data(seed=seed, block_size=size, variant=name) for size in BLOCK_SIZES]
        for count in of_seed[0]:
            sums = [sum(values) for values in zip(*(data[count] for data in of_seed), strict=True)]
            columns.setdefault(count, []).extend(sums)
    return Outcomes(**columns)


EXPERIMENT = Beyond()
