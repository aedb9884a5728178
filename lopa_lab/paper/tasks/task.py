"""PaperTask: a benchmark of the paper, as runs use it, and its problems."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lopa_lab.requests import cut_at_stop
from lopa_ray.text.chat_template import Message


@dataclass(frozen=True, slots=True)
class BenchmarkProblem:
    """One problem of a task."""

    problem_id: str
    """Unique within its task; results are kept under it."""
    prompt: str | tuple[Message, ...]
    """Text as it is, or the messages of a chat, the last of them the user's."""
    prefix: str = ""
    """How the answer begins, behind a chat's prompt. It is not part of the answer that is graded."""
    stop: tuple[str, ...] = ()
    """The graded answer ends before the first of these."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The data set's row, for what grades the answer."""
    suffix: str = ""
    """Text behind the answer, which the model sees from the first step (infilling)."""

    def cut(self, text: str) -> str:
        """An answer without the first stop string and what follows it."""
        return cut_at_stop(text, self.stop)


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
    def problems(self, limit: int | None = None) -> Sequence[BenchmarkProblem]:
        """The first `limit` problems, in the data's order. Raises SettingsError for data that cannot be read."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of problems that the data has. Raises what `problems` raises."""

    @abstractmethod
    def grade(self, problem: BenchmarkProblem, answer: str) -> dict[str, float]:
        """Scores from 0 to 1 of an answer that `BenchmarkProblem.cut` has cut, by name; `metric` is among them."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """What the scores depend on: versions of task definition, packages, data. Never empty."""
