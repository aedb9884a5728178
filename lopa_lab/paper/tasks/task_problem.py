"""TaskProblem: a prompt of a task, and the ends of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa_lab.stop_strings import cut_at_stop
from lopa_ray.text.chat_template import Message


@dataclass(frozen=True, slots=True)
class TaskProblem:
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

    def cut(self, text: str) -> str:
        """An answer without the first stop string and what follows it."""
        return cut_at_stop(text, self.stop)
