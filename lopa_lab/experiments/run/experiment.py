"""Experiment: the base class of all experiments, their records and findings."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pydantic import Field

from lopa_lab.experiments.run.outcomes import Figures, Name, Outcomes
from lopa_lab.experiments.run.setup import Setup
from lopa_lab.records.intervals import Resamples
from lopa_lab.records.points_log import MeasuredPoint, Point
from lopa_lab.records.record import Record, Value

if TYPE_CHECKING:
    from lopa_lab.experiments.run.workbench import Workbench

Data: TypeAlias = Mapping[str, Any]
"""The measurement of a point, as JSON."""


class ExperimentRecord(Record):
    """One whole run of one experiment."""

    group: ClassVar[str] = "experiment"
    name: str = Field(alias="experiment")
    setup: Setup
    points: tuple[MeasuredPoint, ...]

    def data(self, **parameters: Value) -> dict[str, Any]:
        """Return the data of the one point with these parameters. Raises KeyError without such a point."""
        for measured in self.points:
            if parameters.items() <= measured.point.items():
                return measured.data
        raise KeyError(parameters)

    def outcomes(self, **parameters: Value) -> Outcomes:
        """Return the outcomes at the one point with these parameters. Raises KeyError without such a point."""
        data = self.data(**parameters)
        return Outcomes(**{field.name: data[field.name] for field in fields(Outcomes)})

    def figures(self, points: Mapping[Name, Point]) -> Figures[Name]:
        """The figures of the outcomes at these points. Raises KeyError without one of them."""
        return Figures({name: self.outcomes(**point) for name, point in points.items()}, self.resamples)

    def equal_answers(self, one: Point, other: Point) -> int:
        """The number of problems whose `answers` are the same at two points. Raises KeyError without one of them."""
        own, others = (self.data(**point)["answers"] for point in (one, other))
        return sum(map(operator.eq, own, others))

    @cached_property
    def resamples(self) -> Resamples:
        """Draws of the problems of the run."""
        return Resamples(self.setup.problems)

    def as_json(self) -> str:
        """The text of the record's file, with a line for each point."""
        head = self.model_dump_json(indent=1, by_alias=True, exclude={"points"}).removesuffix("\n}")
        points = ",\n".join(f"  {measured.model_dump_json()}" for measured in self.points)
        return f'{head},\n "points": [\n{points}\n ]\n}}\n'

    def shared_cores(self, workers: int, *, on_this_machine: bool) -> str:
        """A sentence on comparisons of workers, if so many have to share the cores of the machine; else nothing."""
        if self.machine.accelerators or not on_this_machine or self.machine.cores > workers:
            return ""
        return (
            f" The {workers} workers share {self.machine.cores} cores: figures of workers with devices of their own "
            "differ."
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer that a record gives."""

    text: str
    """A paragraph, with intervals."""
    table: Mapping[str, Sequence[str]]
    """Header → cells of the column, as many in each."""
    headline: str = ""
    """The answer in one sentence, for a list of all; without one the question is not listed."""
    against_paper: str = ""
    """A sentence on how that agrees with `Experiment.paper`."""

    @property
    def header(self) -> list[str]:
        """The headers of the table."""
        return list(self.table)

    @property
    def rows(self) -> list[list[str]]:
        """The rows of the table."""
        return [list(cells) for cells in zip(*self.table.values(), strict=True)]


class Experiment(ABC):
    """One question: the points at which something is measured, and the finding from the measurements.

    An experiment is stateless. `finding` and `draw` read a record alone, so that they can be made anew from it.
    """

    problems: ClassVar[int]
    """Default number of problems."""

    smallest: ClassVar[Mapping[str, Any] | None] = {}
    """Constants of its module with values that make it small enough for a test; None: it needs groups of workers."""

    timed: ClassVar[bool] = False
    """Whether times are measured. A run of such an experiment can be continued only on the machine that began it."""

    resampled: ClassVar[str] = "problems"
    """The items that intervals are a bootstrap over."""

    plot_rows: ClassVar[Sequence[int]] = (1,)
    """Heights of the axes, which lie below each other."""

    method: ClassVar[str]
    """A few sentences on what was measured, and how."""

    paper: ClassVar[str] = ""
    """The paper's claim about the question."""

    def describe_problems(self, setup: Setup) -> str:
        """The number of problems and their seed, for the page. Override it if points have seeds of their own."""
        return f"{setup.problems} problems of seed {setup.seed}"

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
