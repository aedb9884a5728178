"""Settings of how a group follows its load."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from lopa_ray.config.strict import StrictModel
from lopa_ray.errors import SettingsError

PolicyName: TypeAlias = Literal["branches", "requests", "step_time"]


class ScalingSettings(StrictModel):
    """Settings of how a group follows its load, with `group.num_workers` at least. Its wait before a change follows
    from the time that a worker takes to start."""

    max_workers: int = Field(ge=1)
    """Maximum number of workers."""

    policy: PolicyName = "branches"
    """The load that `target` is a value of. branches: per worker and step; requests: in flight and waiting, per worker;
    step_time: seconds of a step, however many workers that takes, up to one per branch."""

    target: float = Field(default=1.0, gt=0.0)
    """Wanted value of the load that `policy` selects."""

    @model_validator(mode="after")
    def _step_time_needs_a_target(self) -> Self:
        if self.policy == "step_time" and "target" not in self.model_fields_set:
            raise SettingsError(
                "policy step_time without a target; set the seconds that a step may take", setting="policy"
            )
        return self
