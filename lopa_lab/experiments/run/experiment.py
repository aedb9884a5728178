"""Experiment: the base class of all experiments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from lopa_lab.experiments.run.record import ExperimentRecord, Point, Setup

if TYPE_CHECKING:
    from lopa_lab.experiments.run.workbench import Workbench

Data: TypeAlias = Mapping[str, Any]
"""What was measured at a point, as JSON."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer that a record gives."""

    text: str
    """A paragraph, with intervals."""
    header: Sequence[str]
    """Of the table."""
    rows: Sequence[Sequence[str]]
    headline: str = ""
    """The answer in one sentence, for a list of all; without one the question is not listed."""
    against_paper: str = ""
    """How that agrees with `Experiment.paper`."""


class Experiment(ABC):
    """One question: the points at which something is measured, and the finding from the measurements.

    An experiment is stateless. `finding` and `draw` read a record alone, so that they can be made anew from it.
    """

    problems: ClassVar[int]
    """Default number of problems."""

    timed: ClassVar[bool] = False
    """Whether times are measured. A run of such an experiment can be continued only on the machine that began it."""

    resampled: ClassVar[str] = "problems"
    """What intervals are a bootstrap over."""

    plot_rows: ClassVar[Sequence[int]] = (1,)
    """Heights of the axes, which lie below each other."""

    method: ClassVar[str]
    """What was measured, and how, in a few sentences."""

    paper: ClassVar[str]
    """The paper's claim about the question, or that it makes none."""

    def describe_problems(self, setup: Setup) -> str:
        """The number of problems and their seed, for the page. Override it if points have seeds of their own."""
        return f"{setup.problems} held-out problems of seed {setup.seed}"

    @abstractmethod
    def points(self) -> Sequence[Point]:
        """The parameters of each point, all different. Each is measured on its own, in this order."""

    @abstractmethod
    def measure(self, bench: Workbench, point: Point) -> Data:
        """Measure one point. The result depends on the run's problems and seed and on the point, and on no other
        point."""

    @abstractmethod
    def finding(self, record: ExperimentRecord) -> Finding:
        """The finding from a whole record."""

    @abstractmethod
    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Draw a whole record on matplotlib's axes, one for each of `plot_rows`."""
