"""Experiment: the base class of all experiments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from cluster.experiments.run.record import ExperimentRecord, Point

if TYPE_CHECKING:
    from cluster.experiments.run.workbench import Workbench

Data: TypeAlias = Mapping[str, Any]
"""What was measured at a point, as JSON."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a record says."""

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
    """One question: the points at which something is measured, and what the measurements say.

    An experiment is stateless. `finding` and `draw` read a record alone, so that they can be made anew from it.
    """

    problems: ClassVar[int]
    """How many problems are decoded unless the command says otherwise."""

    timed: ClassVar[bool] = False
    """Whether times are measured: a run then goes on only on the machine that it was begun on."""

    plot_rows: ClassVar[Sequence[int]] = (1,)
    """Heights of the axes, which lie below each other."""

    method: ClassVar[str]
    """What was measured, and how, in a few sentences."""

    paper: ClassVar[str]
    """What the paper claims about it, or that it says nothing."""

    @abstractmethod
    def points(self) -> Sequence[Point]:
        """The parameters of each point, all different. Each is measured on its own, in this order."""

    @abstractmethod
    def measure(self, bench: Workbench, point: Point) -> Data:
        """Measure one point. The result depends on the run's problems and seed and on the point, and on no other
        point."""

    @abstractmethod
    def finding(self, record: ExperimentRecord) -> Finding:
        """What a whole record says."""

    @abstractmethod
    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Draw a whole record on matplotlib's axes, one for each of `plot_rows`."""
