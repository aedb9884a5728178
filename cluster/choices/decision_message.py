"""The message from the ingress to a decode group for a decision; the group answers with a `DecisionResult`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.choices.messages import OwnedId
from lopa_ray.decisions.encoded_input import DecisionInput
from lopa_ray.decisions.questions import Question


@dataclass(frozen=True, slots=True)
class DecisionMessage:
    """One HTTP request, checked as far as that is possible without the model."""

    id: str  # see `ChoicesRequest`, for this and what has the same name
    input: DecisionInput
    questions: tuple[Question, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # the group's defaults fill the rest
    client: str = ""
    priority: int = 0
    deadline_s: float | None = None

    @property
    def owned_id(self) -> OwnedId:
        return self.client, self.id
