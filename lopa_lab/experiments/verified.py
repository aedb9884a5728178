"""`lopa experiment verified`: What do verified drafts give, and what do they cost?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from lopa_lab.experiments.run.drawing import draw_over_tpf
from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import Figures
from lopa_lab.experiments.run.setup import FIT_SEED
from lopa_lab.experiments.run.workbench import Workbench, graded
from lopa_lab.records.figure import PALETTE
from lopa_lab.records.intervals import estimate
from lopa_lab.records.points_log import Point
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.errors import SettingsError

BLOCK_SIZES = (16, 32)
THRESHOLDS = (0.7, 0.8, 0.9, 0.95)
BRANCHES = (4, 8, 16)

ONE, LOPA, EXACT, RELAXED = "one branch", "LoPA", "exact", "relaxed"
ONE_SETTLED, RELAXED_SETTLED = "one branch, settled", "relaxed, settled"

SETTINGS: dict[str, dict[str, Any]] = {
    ONE: {},
    LOPA: {},
    EXACT: {"lookahead": "verified"},
    RELAXED: {"lookahead": "verified", "acceptance": 0.5},
    ONE_SETTLED: {"settled": 0.05},
    RELAXED_SETTLED: {"lookahead": "verified", "acceptance": 0.5, "settled": 0.05},
}
"""Changes of settings, by what decodes."""

USUAL_SIZE, USUAL_THRESHOLD, USUAL_BRANCHES = 32, 0.9, 8
"""The place of the finding."""

RUNS: dict[str, tuple[Sequence[int], Sequence[float]]] = {
    ONE: ((1,), THRESHOLDS),
    LOPA: ((4, 8), THRESHOLDS),
    EXACT: (BRANCHES, (USUAL_THRESHOLD,)),
    RELAXED: (BRANCHES, (USUAL_THRESHOLD,)),
    ONE_SETTLED: ((1,), (USUAL_THRESHOLD,)),
    RELAXED_SETTLED: (BRANCHES, (USUAL_THRESHOLD,)),
}
"""Branches and thresholds of each, for each size of blocks."""


class Name(NamedTuple):
    """A point."""

    block_size: int
    decoder: str
    num_branches: int
    confidence_threshold: float


class Verified(Experiment):
    """See the module."""

    problems = 300
    smallest: ClassVar = {"BLOCK_SIZES": (USUAL_SIZE,)}
    plot_rows = (1, 1)
    method = (
        f"D2F's rule; the table is of blocks of {USUAL_SIZE} and threshold {USUAL_THRESHOLD:g}. exact: verified "
        "lookahead, whose drafts count where the rule fills just what they hold. relaxed: acceptance 0.5, so drafts "
        "count too whose further tokens are the model's choices with a probability above that. settled: the rule also "
        "fills choices that stay as they were while other tokens were filled (0.05). Forwards: branch evaluations. "
        "Equal answers: token ids and finish reason are those of one branch. The model that proposes drafts is fitted "
        f"to problems of seed {FIT_SEED}. Numbers in the figure are thresholds on the lines of one branch and of LoPA, "
        "and branches on the others."
    )
    paper = (
        "It verifies no branches. Others do: Spiffy (arXiv 2509.18085) and FreeDave (arXiv 2510.00294) with equal "
        "outputs, PSD (arXiv 2605.15609) with a relaxed acceptance."
    )

    def points(self) -> Sequence[Point]:
        return list(_points().values())

    def measure(self, bench: Workbench, point: Point) -> Data:
        """The outcomes, and the answers' fingerprints where they are compared. Raises SettingsError for the problems
        that the drafts' model is fitted to."""
        if bench.setup.seed == FIT_SEED:
            raise SettingsError(
                f"seed: got {FIT_SEED}; the model that proposes drafts is fitted to these problems; take another seed",
                setting="seed",
            )
        decoder = str(point["decoder"])
        changes = {"decoder": "lopa", "lookahead": "lopa", "acceptance": "exact", "settled": None}
        of_point = {name: value for name, value in point.items() if name != "decoder"}
        settings = bench.settings(**changes | of_point | SETTINGS[decoder])
        results = bench.decode(settings)
        data = graded(bench.problems, results)
        if decoder in (ONE, EXACT) and point["confidence_threshold"] == USUAL_THRESHOLD:
            data["answers"] = list(map(answer_fingerprint, results))
        return data

    def finding(self, record: ExperimentRecord) -> Finding:
        """Exact and relaxed drafts against one branch and LoPA, at the usual settings."""
        problems = record.setup.problems
        figures = record.figures(_points())
        tpf, score, forwards = figures.tpf, figures.score, figures.forwards
        equal = {
            name: record.equal_answers(point, _usual(ONE, 1, name.block_size)._asdict())
            for name, point in _points().items()
            if name.decoder == EXACT
        }
        one, settled = _usual(ONE, 1), _usual(ONE_SETTLED, 1)
        in_short = {size: _in_short(figures, equal, size, problems) for size in BLOCK_SIZES[::-1]}
        spent = estimate(forwards[_usual(EXACT, USUAL_BRANCHES)])
        text = " ".join(
            [
                *in_short.values(),
                f"With blocks of {USUAL_SIZE}, exact drafts take {spent:.2f} forwards per token; one branch with "
                f"settled has {estimate(tpf[settled] / tpf[one]):.2f} times the TPF of one without, at "
                f"{estimate(score[settled] - score[one]):+.1f} points.",
            ]
        )
        shown = (USUAL_SIZE, USUAL_THRESHOLD)
        at = [
            index for index, name in enumerate(tpf) if (name.block_size, name.confidence_threshold) == shown
        ]
        columns = {
            "decoder": [name.decoder for name in tpf],
            "branches": [str(name.num_branches) for name in tpf],
            **figures.columns(),
        }
        table = {header: [cells[index] for index in at] for header, cells in columns.items()}
        forks = _usual(LOPA, USUAL_BRANCHES)
        compared = (
            f"Here, with blocks of {USUAL_SIZE} and {USUAL_BRANCHES} branches, LoPA has "
            f"{estimate(tpf[forks] / tpf[one]):.2f} times the TPF of one branch at "
            f"{estimate(score[forks] - score[one]):+.1f} points."
        )
        return Finding(text, table, in_short[USUAL_SIZE], compared)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Score and forwards per token over TPF, with intervals."""
        figures, lines = record.figures(_points()), _lines()
        rows = {"solved, %": figures.score, "forwards per token": figures.forwards}
        draw_over_tpf(axes, lines, figures.tpf, rows)
        for index, names in enumerate(lines.values()):
            for name in names:
                of_line = name.decoder in (ONE, LOPA)
                text = f"{name.confidence_threshold:g}" if of_line else str(name.num_branches)
                spot = (float(figures.tpf[name][0]), float(figures.forwards[name][0]))
                offset = {"xytext": (4, -9), "textcoords": "offset points", "fontsize": 7}
                axes[1].annotate(text, spot, color=PALETTE[index], **offset)


def answer_fingerprint(result: GenerationResult) -> str:
    """A name for token ids and finish reason that hardly any others have."""
    return hashlib.sha256(repr((result.token_ids, result.finish_reason)).encode()).hexdigest()[:8]


def _points() -> dict[Name, Point]:
    names = [
        Name(size, decoder, branches, threshold)
        for size in BLOCK_SIZES
        for decoder, (numbers, thresholds) in RUNS.items()
        for threshold in thresholds
        for branches in numbers
    ]
    return {name: name._asdict() for name in names}


def _usual(decoder: str, num_branches: int, size: int = USUAL_SIZE) -> Name:
    return Name(size, decoder, num_branches, USUAL_THRESHOLD)


def _lines() -> dict[str, list[Name]]:
    """The lines of the figure: one decoder over thresholds, or over branches."""
    names = [name for name in _points() if name.block_size == USUAL_SIZE]
    lines: dict[str, list[Name]] = {}
    for name in names:
        label = {LOPA: f"{LOPA}, {name.num_branches} branches", ONE_SETTLED: RELAXED_SETTLED}
        lines.setdefault(label.get(name.decoder, name.decoder), []).append(name)
    return lines


def _in_short(figures: Figures[Name], equal: Mapping[Name, int], size: int, problems: int) -> str:
    """The usual numbers of branches, with blocks of a size, and the equal answers of any."""
    tpf, score = figures.tpf, figures.score
    one, lopa = _usual(ONE, 1, size), _usual(LOPA, 4, size)
    least = min(count for name, count in equal.items() if name.block_size == size)
    exact, relaxed = (_usual(decoder, USUAL_BRANCHES, size) for decoder in (EXACT, RELAXED))
    return (
        f"With blocks of {size}, exact drafts with {USUAL_BRANCHES} branches have "
        f"{estimate(tpf[exact] / tpf[one]):.2f} times the TPF of one branch, with {least} of {problems} "
        f"answers equal; relaxed ones have {estimate(tpf[relaxed] / tpf[lopa]):.2f} times that of LoPA with 4, at "
        f"{estimate(score[relaxed] - score[one]):+.1f} points against one branch."
    )


EXPERIMENT = Verified()
