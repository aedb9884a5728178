"""`lopa experiment predictor`: Which branch confidence predicts best, and decodes best?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import error_bars
from lopa_lab.records.intervals import Array, estimate
from lopa_lab.records.points_log import Point
from lopa_ray.decoding.branch_confidence import parse_metric
from lopa_ray.decoding.branching import scores_by_position
from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.decoding.lookahead import NO_MASKS_CONFIDENCE, best_branch
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.unmasking_rules import select_by_block
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport

BRANCHES = 8
OF_ALL_SCORES = ("mean", "bottom(0.1)", "bottom(0.3)", "window(8)", "segment(4)")
METRICS = {
    "neg_entropy": OF_ALL_SCORES,
    "probability": (*OF_ALL_SCORES, "product", "geometric", "length_corrected(0.5)"),
}
"""By ranking: a product makes no sense of negative scores."""

Name: TypeAlias = tuple[str, str]
"""Ranking and metric."""


def average_ranks(values: Sequence[float]) -> Array:
    """Rank of each value from 1 on; equal values share the mean of their ranks: [values], float64."""
    array = np.asarray(values, dtype=np.float64)
    ordered = np.sort(array)
    first, last = np.searchsorted(ordered, array, "left"), np.searchsorted(ordered, array, "right")
    ranks: Array = (first + 1 + last) / 2
    return ranks


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation of two lists of the same length; 0 if one of them is constant."""
    a, b = average_ranks(one), average_ranks(other)
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else 0.0


class Observed:
    """Each metric in the steps of one request. Steps whose branches accept equally many tokens are left out."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = {name: parse_metric(name) for name in metrics}
        self.steps = 0
        self.best = 0
        """Accepted tokens of the best branch of each step, added up."""
        self.rank_correlation = dict.fromkeys(metrics, 0.0)
        """Added up over steps."""
        self.accepted = dict.fromkeys(metrics, 0)
        """Accepted tokens of the branch that each metric would choose, added up over steps."""

    def observe(self, scores: Sequence[Sequence[float]], accepted: Sequence[int]) -> None:
        """Take in a step: per branch the scores of its masked positions, and its accepted tokens."""
        if len(set(accepted)) < 2:
            return
        self.steps += 1
        self.best += max(accepted)
        for name, metric in self._metrics.items():
            confidences = [metric(branch) if branch else NO_MASKS_CONFIDENCE for branch in scores]
            self.rank_correlation[name] += spearman(confidences, accepted)
            self.accepted[name] += accepted[best_branch(confidences)]


class ObservedSession(LopaSession):
    """LoPA, observed."""

    settings: LopaSettings

    def __init__(self, session: DecodeSession, observed: Observed) -> None:
        self._observed = observed
        super().__init__(session.prompt, session.settings, session.vocabulary, session.constraint)

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        threshold = self.settings.confidence_threshold
        accepted = [
            len(branch.fork.decisions)
            + len(select_by_block(branch.canvas, scores_by_position(report), threshold))
            for branch, report in zip(self._branches, reports, strict=True)
        ]
        self._observed.observe([report.scores.tolist() for report in reports], accepted)
        return super()._advance(plan, reports)


class Predictor(Experiment):
    """See the module."""

    problems = 80
    smallest: ClassVar = {
        "METRICS": {"neg_entropy": ("mean", "bottom(0.3)"), "probability": ("mean", "product")},
        "BRANCHES": 4,
    }
    plot_rows = (1, 1)
    method = (
        f"LoPA with {BRANCHES} branches whose winner the mean decides. ρ: Spearman's rank correlation, over the "
        "branches of a step, of branch confidence and the tokens that the step decides if the branch wins; averaged "
        "over steps. A part of the product's ρ is that the anchor has one mask more than a fork. TPF and score: the "
        "metric decides the winners."
    )
    paper = "It takes the mean confidence of masked positions (section 3), and compares no other."

    def points(self) -> Sequence[Point]:
        """One observed decode for each ranking, and then a decode by each metric."""
        return [
            {"ranking": ranking, "metric": metric}
            for ranking, metrics in METRICS.items()
            for metric in (None, *metrics)
        ]

    def measure(self, bench: Workbench, point: Point) -> Data:
        """Return the observations of each problem, or the outcomes."""
        ranking, metric = str(point["ranking"]), point["metric"]
        settings = bench.settings(
            decoder="lopa", ranking=ranking, num_branches=BRANCHES, branch_confidence=metric or "mean"
        )
        if metric is not None:
            return bench.decode_problems(settings)
        observed = [Observed(METRICS[ranking]) for _ in bench.problems]
        bench.decode_problems(settings, lambda session, index: ObservedSession(session, observed[index]))
        names = METRICS[ranking]
        return {
            "steps": [request.steps for request in observed],
            "best": [request.best for request in observed],
            "rank correlation": {n: [round(each.rank_correlation[n], 6) for each in observed] for n in names},
            "accepted": {n: [each.accepted[n] for each in observed] for n in names},
        }

    def finding(self, record: ExperimentRecord) -> Finding:
        """The best predictor and the best decoder of each ranking."""
        rho = _observed(record)
        figures = record.figures({(r, m): {"ranking": r, "metric": m} for r, m in rho})
        tpf = figures.tpf
        sentences, answers, compared = [], [], []
        for ranking, metrics in METRICS.items():
            names = [(ranking, metric) for metric in metrics]
            predicts, decodes = max(names, key=lambda n: rho[n][0]), max(names, key=lambda n: tpf[n][0])
            mean = (ranking, "mean")
            relation = spearman([rho[n][0] for n in names], [tpf[n][0] for n in names])
            ratio, gap = estimate(tpf[predicts] / tpf[decodes]), estimate(tpf[mean] / tpf[decodes])
            if predicts == decodes:
                verdict, answer = "so the best predictor also decodes best", "is the fastest"
            else:
                verdict = f"the best predictor has {ratio:.3f} times the TPF of the fastest"
                answer = f"has {ratio:.3f} times the TPF of the fastest, {decodes[1]}"
            answers.append(f"{ranking}: {predicts[1]} predicts best and {answer}")
            slower = "is slower than" if gap.high < 1 else "is not clearly slower than"
            of_mean = f"{slower} {decodes[1]}: {gap:.3f} times its TPF"
            of_mean = "is the fastest" if decodes == mean else of_mean
            compared.append(f"With ranking {ranking} the mean {of_mean} here.")
            sentences.append(
                f"With ranking {ranking} the best predictor is {predicts[1]}, and the fastest decoder is {decodes[1]}; "
                f"{verdict}. Over the metrics ρ and TPF have a rank correlation of {relation:.2f}."
            )
        table = {
            "ranking": [ranking for ranking, _ in rho],
            "metric": [metric for _, metric in rho],
            "ρ": column(rho.values(), ".2f"),
            "TPF": column(tpf.values(), ".2f"),
            "score %": column(figures.score.values(), ".1f"),
        }
        return Finding(" ".join(sentences), table, "; ".join(answers) + ".", " ".join(compared))

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """ρ and TPF of each metric."""
        rho = _observed(record)
        names = list(dict.fromkeys(metric for metrics in METRICS.values() for metric in metrics))
        for at, (ranking, metrics) in enumerate(METRICS.items()):
            tpfs = [record.outcomes(ranking=ranking, metric=m).tpf(record.resamples) for m in metrics]
            xs = [names.index(m) + 0.16 * at - 0.08 for m in metrics]
            for axis, figures in zip(axes, ([rho[ranking, m] for m in metrics], tpfs), strict=True):
                error_bars(axis, xs, list(map(estimate, figures)), at, "", label=ranking)
        axes[0].set_ylabel("ρ")
        axes[1].set_ylabel("TPF")
        axes[1].set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=9)
        axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)


def _observed(record: ExperimentRecord) -> Mapping[Name, Array]:
    """The mean rank correlation of each metric."""
    rho = {}
    for ranking, metrics in METRICS.items():
        data = record.data(ranking=ranking, metric=None)
        for metric in metrics:
            rho[ranking, metric] = record.resamples.quotient(data["rank correlation"][metric], data["steps"])
    return rho


EXPERIMENT = Predictor()
