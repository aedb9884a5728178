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
from lopa_lab.records.intervals import FEWEST_PROBLEMS, estimate
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
"""The place at which the bars are held."""

RUNS: dict[str, tuple[Sequence[int], Sequence[float]]] = {
    ONE: ((1,), THRESHOLDS),
    LOPA: ((4, 8), THRESHOLDS),
    EXACT: (BRANCHES, (USUAL_THRESHOLD,)),
    RELAXED: (BRANCHES, (USUAL_THRESHOLD,)),
    ONE_SETTLED: ((1,), (USUAL_THRESHOLD,)),
    RELAXED_SETTLED: (BRANCHES, (USUAL_THRESHOLD,)),
}
"""Branches and thresholds of each, for each size of blocks."""

EXACT_BARS = {4: 1.5, 8: 1.75, 16: 1.9}
"""Branches → times the TPF of one branch, at least."""
FORWARDS_BAR = 1.05
"""Forwards per token of exact drafts, at most."""
RELAXED_BARS = {RELAXED: 1.2, RELAXED_SETTLED: 1.4}
"""Times the TPF of LoPA with 4 branches, at least."""
FEWER_POINTS = -2.5
"""Minimum of the score of relaxed drafts minus the score of one branch."""
SETTLED_BAR = 1.5
"""Times the TPF of one branch without the setting."""


class Name(NamedTuple):
    """A point."""

    block_size: int
    decoder: str
    num_branches: int
    confidence_threshold: float


class Bar(NamedTuple):
    """A figure that verified lookahead is held to, with what was measured."""

    text: str
    met: bool


class Verified(Experiment):
    """See the module."""

    problems = 300
    smallest: ClassVar = {"BLOCK_SIZES": (USUAL_SIZE,)}
    plot_rows = (1, 1)
    method = (
        f"D2F's rule with blocks of {' and '.join(map(str, BLOCK_SIZES))}. one branch: the rule alone, at several "
        "values of confidence_threshold. LoPA: its forks, of which the one with the best mean score wins. exact: "
        "verified lookahead, whose drafts count where the rule fills just what they hold. relaxed: acceptance 0.5, so "
        "that drafts count too whose further tokens are the model's own choices with a probability above that. "
        "settled: the rule also fills choices that stay as they were while other tokens were filled, with settled "
        "0.05. TPF: tokens up to the first EOS ÷ steps, of all problems together. Forwards per token: branch "
        "evaluations ÷ tokens. Equal answers: token ids and finish reason are those of one branch at the same "
        f"settings. The model that proposes drafts is the package's, fitted to other problems (seed {FIT_SEED}). "
        f"Bars are for blocks of {USUAL_SIZE} and threshold {USUAL_THRESHOLD:g}, and concern the measured values, "
        f"not intervals. Figure: blocks of {USUAL_SIZE}; the numbers are thresholds on the lines of one branch "
        "and of LoPA, and branches on the others."
    )
    paper = (
        "LoPA's winner may have filled what the rule would not have, and its answers differ from those of one branch: "
        "with D2F-Dream on GSM8K TPF rises from 3.1 to 10.1, and the score falls from 78.5 to 73.8 (Table 1). The "
        "paper has no verified branches. Others publish them: Spiffy (arXiv 2509.18085) and FreeDave (arXiv "
        "2510.00294) with equal outputs, PSD (arXiv 2605.15609) with a relaxed acceptance."
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
        """The bars at the usual settings, then the other size of blocks."""
        problems = record.setup.problems
        figures = record.figures(_points())
        tpf, score, forwards = figures.tpf, figures.score, figures.forwards
        equal = {
            name: record.equal_answers(point, _usual(ONE, 1, name.block_size)._asdict())
            for name, point in _points().items()
            if name.decoder == EXACT
        }
        bars = _bars(figures, equal, problems)
        one, lopa = _usual(ONE, 1), _usual(LOPA, 4)
        caveat = (
            "This is one small model, on the kind of problems that it was trained for; real weights may behave "
            "differently, and the command takes them (`--model`). "
            if record.setup.model == "demo"
            else ""
        )
        verdict = f"{sum(bar.met for bar in bars)} of {len(bars)} bars are met"
        if problems < FEWEST_PROBLEMS:
            verdict = f"Fewer than {FEWEST_PROBLEMS} problems do not tell whether bars are met"
        text = (
            f"{caveat}With blocks of {USUAL_SIZE} and threshold {USUAL_THRESHOLD:g} one branch has "
            f"{estimate(tpf[one]):.2f} TPF at {estimate(score[one]):.1f} % solved for {estimate(forwards[one]):.2f} "
            f"forwards per token, and LoPA with 4 branches {estimate(tpf[lopa]):.2f} at {estimate(score[lopa]):.1f} % "
            f"for {estimate(forwards[lopa]):.2f}. {verdict}: "
            + "; ".join(bar.text for bar in bars)
            + ". "
            + " ".join(
                _in_short(figures, equal, size, problems) for size in BLOCK_SIZES if size != USUAL_SIZE
            )
        ).rstrip()
        table = {
            "block size": [str(name.block_size) for name in tpf],
            "decoder": [name.decoder for name in tpf],
            "branches": [str(name.num_branches) for name in tpf],
            "threshold": [f"{name.confidence_threshold:g}" for name in tpf],
            **figures.columns(),
            "equal answers": [f"{equal[name]} of {problems}" if name in equal else "" for name in tpf],
        }
        on = "On one small model: " if record.setup.model == "demo" else ""
        headline = f"{on}{_in_short(figures, equal, USUAL_SIZE, problems)} {verdict}."
        forks, drafts = _usual(LOPA, USUAL_BRANCHES), _usual(EXACT, USUAL_BRANCHES)
        compared = (
            f"Here, with blocks of {USUAL_SIZE} and {USUAL_BRANCHES} branches, LoPA has "
            f"{estimate(tpf[forks] / tpf[one]):.2f} times the TPF of one branch at "
            f"{estimate(score[forks] - score[one]):+.1f} points, and exact drafts have "
            f"{estimate(tpf[drafts] / tpf[one]):.2f} times at {estimate(score[drafts] - score[one]):+.1f} points."
        )
        return Finding(text, table, headline, compared)

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


def _bars(figures: Figures[Name], equal: Mapping[Name, int], problems: int) -> list[Bar]:
    tpf, score = figures.tpf, figures.score
    one, lopa, one_settled = _usual(ONE, 1), _usual(LOPA, 4), _usual(ONE_SETTLED, 1)
    bars = []
    for branches, least in EXACT_BARS.items():
        ratio = estimate(tpf[_usual(EXACT, branches)] / tpf[one])
        what = f"exact drafts with {branches} branches have {ratio:.2f} times the TPF of one branch"
        bars.append(_bar(what, f"at least {least:g}", ratio.value >= least))
    spent = estimate(figures.forwards[_usual(EXACT, USUAL_BRANCHES)])
    what = f"they take {spent:.2f} forwards per token with {USUAL_BRANCHES} branches"
    bars.append(_bar(what, f"at most {FORWARDS_BAR:g}", spent.value <= FORWARDS_BAR))
    same = [equal[_usual(EXACT, branches)] for branches in EXACT_BARS]
    what = f"{', '.join(map(str, same))} of {problems} answers are equal to those of one branch"
    bars.append(_bar(what, "all", all(count == problems for count in same)))
    for decoder, least in RELAXED_BARS.items():
        name = _usual(decoder, USUAL_BRANCHES)
        ratio, points = estimate(tpf[name] / tpf[lopa]), estimate(score[name] - score[one])
        what = (
            f"{decoder} drafts with {USUAL_BRANCHES} branches have {ratio:.2f} times the TPF of LoPA with 4 at "
            f"{points:+.1f} points against one branch"
        )
        asked = f"at least {least:g} at no less than {FEWER_POINTS:g} points"
        bars.append(_bar(what, asked, ratio.value >= least and points.value >= FEWER_POINTS))
    ratio, points = estimate(tpf[one_settled] / tpf[one]), estimate(score[one_settled] - score[one])
    what = f"one branch with settled has {ratio:.2f} times the TPF of one without at {points:+.1f} points"
    bars.append(_bar(what, f"at least {SETTLED_BAR:g}", ratio.value >= SETTLED_BAR))
    return bars


def _bar(what: str, asked: str, met: bool) -> Bar:
    return Bar(f"{what} (bar: {asked}; {'met' if met else 'missed'})", met)


def _in_short(figures: Figures[Name], equal: Mapping[Name, int], size: int, problems: int) -> str:
    """The usual numbers of branches, with blocks of a size."""
    tpf, score = figures.tpf, figures.score
    one, lopa = _usual(ONE, 1, size), _usual(LOPA, 4, size)
    exact, relaxed = (_usual(decoder, USUAL_BRANCHES, size) for decoder in (EXACT, RELAXED))
    return (
        f"With blocks of {size}, exact drafts with {USUAL_BRANCHES} branches have "
        f"{estimate(tpf[exact] / tpf[one]):.2f} times the TPF of one branch, with {equal[exact]} of {problems} answers "
        f"equal; relaxed ones have {estimate(tpf[relaxed] / tpf[lopa]):.2f} times that of LoPA with 4, at "
        f"{estimate(score[relaxed] - score[one]):+.1f} points against one branch."
    )


EXPERIMENT = Verified()
