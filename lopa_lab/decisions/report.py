"""`lopa eval decisions`: asks labelled questions, reports how good and how calibrated the answers are, and fits
temperatures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from lopa_lab.decisions.labels import LabelledTask
from lopa_lab.decisions.scores import (
    Outcome,
    Scores,
    cross_fitted_temperatures,
    fit_temperature,
    scores_of,
)
from lopa_lab.records.figure import svg_image
from lopa_lab.records.markdown import table
from lopa_ray.config.decision_settings import DecisionSettings, DecisionType, Prefix
from lopa_ray.decisions.answers import type_of
from lopa_ray.decisions.defaults import temperature_key
from lopa_ray.engine.base import Engine

TYPES: tuple[DecisionType, ...] = get_args(DecisionType)


@dataclass(frozen=True, slots=True)
class TypeReport:
    """The questions of one type."""

    type: DecisionType
    plain: Scores
    """Scores at temperature 1."""
    temperature: float
    """Fitted on all of them."""
    calibrated: Scores
    """Each half of the questions at the temperature that the other half gives."""
    order_changes: float | None
    """Share of the questions whose most probable value is another one in another order of the choices; None if they
    were asked in one order."""


@dataclass(frozen=True, slots=True)
class DecisionReport:
    """All questions, with one way of reading inputs."""

    prefix: Prefix
    rotations: int
    accuracy: float
    """Over the questions of all types."""
    seconds: float
    types: tuple[TypeReport, ...]

    @property
    def defaults(self) -> dict[str, Any]:
        """The values for `decisions.json`."""
        temperatures = {temperature_key(report.type): round(report.temperature, 4) for report in self.types}
        return {"prefix": self.prefix, "rotations": self.rotations, **temperatures}

    def as_text(self) -> str:
        """Tables."""
        header = [
            "type",
            "questions",
            "accuracy",
            "Brier",
            "ECE",
            "temperature",
            "Brier then",
            "ECE then",
            "order",
        ]
        rows = [
            [
                report.type,
                str(report.plain.count),
                f"{report.plain.accuracy:.3f}",
                f"{report.plain.brier:.3f}",
                f"{report.plain.calibration_error:.3f}",
                f"{report.temperature:.2f}",
                f"{report.calibrated.brier:.3f}",
                f"{report.calibrated.calibration_error:.3f}",
                "–" if report.order_changes is None else f"{report.order_changes:.3f}",
            ]
            for report in self.types
        ]
        lines = [
            f"prefix {self.prefix}, rotations {self.rotations}: accuracy {self.accuracy:.3f}",
            table(header, rows),
        ]
        for report in self.types:
            filled = [bin for bin in report.calibrated.bins if bin.count]
            cells = [
                [
                    f"{bin.low:.1f} to {bin.high:.1f}",
                    str(bin.count),
                    f"{bin.confidence:.3f}",
                    f"{bin.accuracy:.3f}",
                ]
                for bin in filled
            ]
            lines += [
                "",
                f"{report.type}, calibrated:",
                table(["probability", "questions", "mean", "right"], cells),
            ]
        return "\n".join(lines)


def evaluate(engine: Engine, labelled: Sequence[LabelledTask], settings: DecisionSettings) -> DecisionReport:
    """Ask all questions. Raises what `Engine.decide` raises."""
    outcomes: list[Outcome] = []
    seconds = 0.0
    by_index = dict(engine.decide_all([task.task for task in labelled], settings))
    for index, task in enumerate(labelled):
        result = by_index[index]
        if isinstance(result, Exception):
            raise result
        seconds = max(seconds, result.seconds)
        outcomes += [
            Outcome(type_of(question), orders, right)
            for question, orders, right in zip(
                task.questions, result.log_likelihoods, task.right, strict=True
            )
        ]
    reports = tuple(
        _report(kind, of_kind)
        for kind in TYPES
        if (of_kind := [outcome for outcome in outcomes if outcome.type == kind])
    )
    return DecisionReport(
        prefix=settings.prefix or "joint",
        rotations=settings.rotations or 1,
        accuracy=sum(report.plain.accuracy * report.plain.count for report in reports) / len(outcomes),
        seconds=seconds,
        types=reports,
    )


def _report(kind: DecisionType, outcomes: Sequence[Outcome]) -> TypeReport:
    rotated = [outcome for outcome in outcomes if len(outcome.log_likelihoods) > 1]
    changes = sum(len(outcome.choices_by_order) > 1 for outcome in rotated)
    return TypeReport(
        type=kind,
        plain=scores_of(outcomes, [1.0] * len(outcomes)),
        temperature=fit_temperature(outcomes),
        calibrated=scores_of(outcomes, cross_fitted_temperatures(outcomes)),
        order_changes=changes / len(rotated) if rotated else None,
    )


def best_report(reports: Sequence[DecisionReport]) -> DecisionReport:
    """The report with the highest accuracy; of equal reports the first."""
    return max(reports, key=lambda report: report.accuracy)


def write_settings(report: DecisionReport, path: Path) -> None:
    """Write what a checkpoint's decisions.json has."""
    path.write_text(json.dumps(report.defaults, indent=2) + "\n", encoding="utf-8")


def reliability_plot(report: DecisionReport) -> str:
    """An SVG image: how often the most probable value is right, over its calibrated probability."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], linestyle=":", color="grey")
        for of_type in report.types:
            bins = [bin for bin in of_type.calibrated.bins if bin.count]
            label = f"{of_type.type} ({of_type.plain.count})"
            axes.plot([b.confidence for b in bins], [b.accuracy for b in bins], marker="o", label=label)
        axes.set_xlabel("probability of the most probable value")
        axes.set_ylabel("share that is right")
        axes.legend()

    return svg_image(draw)
