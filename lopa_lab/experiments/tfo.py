"""`lopa experiment tfo`: How much does the filling order matter, and is LoPA's good?

A random order goes through the same branches as LoPA, the anchor and its best-ranked forks, and draws the winner of
each step evenly. So LoPA's own order may be drawn too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.lookaheads import RandomBranch, varied_by
from lopa_lab.experiments.run.outcomes import Outcomes, column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import PALETTE
from lopa_lab.records.intervals import FEWEST_PROBLEMS, Array, estimate, percent_of
from lopa_lab.records.points_log import Point

ORDERS = 100
CHUNK = 10
"""Orders of a point."""


class FillingOrders(Experiment):
    """See the module."""

    problems = 24
    smallest: ClassVar = {"ORDERS": 4, "CHUNK": 2}
    method = (
        f"{ORDERS} random token filling orders per problem: in each step the winner is drawn evenly from the branches "
        "that LoPA would compare; the confidence rule then fills as usual. TPF: mean over problems of tokens ÷ steps."
    )
    paper = (
        "How many tokens a step fills depends on the order, and LoPA finds a better one (sections 1 and 3)."
    )

    def points(self) -> Sequence[Point]:
        """LoPA, a single branch, and random orders by the chunk."""
        chunks: list[Point] = [{"order": "random", "first": at} for at in range(0, ORDERS, CHUNK)]
        return [{"order": "lopa"}, {"order": "anchor"}, *chunks]

    def measure(self, bench: Workbench, point: Point) -> Data:
        """The outcomes of all problems; of random orders a list of these."""
        single = {"num_branches": 1} if point["order"] == "anchor" else {}
        settings = bench.settings(decoder="lopa", **single)
        if point["order"] != "random":
            return bench.decode_problems(settings)
        first = int(point["first"] or 0)
        sessions = [varied_by(RandomBranch, bench.setup.seed, order) for order in range(first, first + CHUNK)]
        return {"orders": [bench.decode_problems(settings, randomly) for randomly in sessions]}

    def finding(self, record: ExperimentRecord) -> Finding:
        """LoPA among the orders, and what orders do to the score."""
        resamples = record.resamples
        lopa, anchor, orders = _outcomes(record)
        random, own = _tpfs(orders), _tpfs([lopa])[0]
        rows = {
            "worst of the orders": (random.min(axis=0), None),
            "mean of the orders": (random.mean(axis=0), np.mean([order.correct for order in orders], axis=0)),
            "best of the orders": (random.max(axis=0), _correct_of_best(orders)),
            "single branch": (_tpfs([anchor])[0], np.array(anchor.correct)),
            "LoPA": (own, np.array(lopa.correct)),
        }
        tpf = {name: resamples.mean(values) for name, (values, _) in rows.items()}
        below = estimate(
            100 * resamples.mean([share_below(v, c) for v, c in zip(own, random.T, strict=True)])
        )
        mean, best, lopa_tpf = tpf["mean of the orders"], tpf["best of the orders"], tpf["LoPA"]
        single = tpf["single branch"]
        enough = record.setup.problems >= FEWEST_PROBLEMS
        # Shares of a difference that may as well be none, or that goes the other way, say nothing.
        goes = enough and lopa_tpf[0] > mean[0] and estimate(best - mean).low > 0
        goes_on = ""
        if goes:
            way = estimate(percent_of(lopa_tpf - mean, best - mean))
            goes_on = f"; it goes {way:.0f} % of the way from the mean to the best of {len(orders)}"
        spread = estimate(best / tpf["worst of the orders"])
        text = (
            f"Of {len(orders)} random orders of the same problem the fastest has {spread:.2f} times the TPF of the "
            f"slowest: {best[0]:.2f} against {tpf['worst of the orders'][0]:.2f}. LoPA is faster than {below:.0f} % of "
            f"them, and has {estimate(lopa_tpf / mean):.2f} times their mean{goes_on}."
        )
        table = {
            "order": list(rows),
            "TPF": column(tpf.values(), ".2f"),
            "score %": [
                "–" if right is None else f"{estimate(100 * resamples.mean(right)):.1f}"
                for _, right in rows.values()
            ],
        }
        compared = ""
        if enough and estimate(lopa_tpf - single).low > 0:
            part = estimate(percent_of(mean - single, lopa_tpf - single))
            compared = (
                f"Here a random order has {part:.0f} % of what LoPA gains over a single branch: the fork's token gives "
                "that much, whichever fork wins."
            )
        headline = (
            f"The fastest of {len(orders)} random orders has {spread:.2f} times the TPF of the slowest; LoPA is "
            f"faster than {below:.0f} % of them."
        )
        return Finding(text, table, headline, compared)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """A bar from the slowest to the fastest order of each problem, with quartiles, mean and LoPA."""
        lopa, _, orders = _outcomes(record)
        random, own = _tpfs(orders), _tpfs([lopa])[0]
        at = np.argsort(random.mean(axis=0))
        x = np.arange(len(at))
        low, q25, q75, high = np.percentile(random[:, at], [0, 25, 75, 100], axis=0)
        axes[0].vlines(x, low, high, color=PALETTE[5], linewidth=1.5, label="all orders")
        axes[0].vlines(x, q25, q75, color=PALETTE[5], linewidth=5, label="middle half")
        axes[0].plot(x, random[:, at].mean(axis=0), "_", color=PALETTE[0], markersize=9, label="mean")
        axes[0].plot(x, own[at], "D", color=PALETTE[1], markersize=5, label="LoPA")
        axes[0].set(xlabel="problem, by its mean", ylabel="TPF", ylim=(0, None))
        axes[0].figure.legend(loc="outside upper left", ncols=4)


def _outcomes(record: ExperimentRecord) -> tuple[Outcomes, Outcomes, list[Outcomes]]:
    """The outcomes of LoPA, of the single branch, and of each random order."""
    chunks = [point.data["orders"] for point in record.points if point.point["order"] == "random"]
    return (
        record.outcomes(order="lopa"),
        record.outcomes(order="anchor"),
        [Outcomes(**order) for chunk in chunks for order in chunk],
    )


def _tpfs(orders: Sequence[Outcomes]) -> Array:
    """Tokens ÷ steps: [orders, problems], float64."""
    return np.array([np.divide(order.tokens, order.steps) for order in orders])


def _correct_of_best(orders: Sequence[Outcomes]) -> Array:
    """Share of right answers among the fastest orders of each problem: [problems], float64."""
    tpfs = _tpfs(orders)
    fastest = tpfs == tpfs.max(axis=0)
    right = np.array([order.correct for order in orders])
    share: Array = (right * fastest).sum(axis=0) / fastest.sum(axis=0)
    return share


def share_below(value: float, others: Sequence[float]) -> float:
    """The share of `others` below a value; equal values count half."""
    array = np.asarray(others, dtype=np.float64)
    return float((array < value).mean() + (array == value).mean() / 2)


EXPERIMENT = FillingOrders()
