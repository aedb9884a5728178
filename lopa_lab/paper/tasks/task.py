"""PaperTask: a benchmark of the paper, as runs use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lopa_lab.paper.tasks.task_problem import TaskProblem


class PaperTask(ABC):
    """A benchmark: its problems, and what an answer scores."""

    name: str
    """What the command line calls it."""
    title: str
    """What the paper calls it."""
    shots: int
    """Solved examples before each problem."""
    metric: str
    """The score that the paper reports, among those of `grade`."""
    runs_code: bool = False
    """Whether grading executes what the model wrote."""

    @abstractmethod
    def problems(self, limit: int | None = None) -> Sequence[TaskProblem]:
        """The first `limit` problems, in the data's order. Raises SettingsError for data that cannot be read."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of problems that the data has. Raises what `problems` raises."""

    @abstractmethod
    def grade(self, problem: TaskProblem, answer: str) -> dict[str, float]:
        """Scores from 0 to 1 of an answer that `TaskProblem.cut` has cut, by name; `metric` is among them."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """What the scores depend on: versions of task definition, packages, data. Never empty."""
