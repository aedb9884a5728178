"""How a group follows its load."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from lopa_ray.config.strict import StrictModel
from lopa_ray.errors import SettingsError

PolicyName: TypeAlias = Literal["branches", "requests", "step_time"]


class ScalingSettings(StrictModel):
    """How a group follows its load."""

    max_workers: int = Field(ge=1)
    """Maximum number of workers."""

    min_workers: int = Field(default=1, ge=1)
    """Minimum number of workers, also of an idle group."""

    policy: PolicyName = "branches"
    """The load that `target` is a value of. branches: per worker and step; requests: in flight and waiting, per worker;
    step_time: seconds of a step, however many workers that takes, up to one per branch."""

    target: float = Field(default=1.0, gt=0.0)
    """Wanted value of the load that `policy` selects."""

    interval_s: float = Field(default=1.0, gt=0.0)
    """Seconds between two measurements of the load."""

    grow_after_s: float = Field(default=2.0, ge=0.0)
    """Seconds for which more workers must have been in demand before some are added."""

    shrink_after_s: float = Field(default=30.0, ge=0.0)
    """Seconds for which fewer must have been in demand before some leave."""

    cool_down_s: float = Field(default=10.0, ge=0.0)
    """Seconds after a change in which there is no other."""

    @model_validator(mode="after")
    def _bounds_and_target(self) -> Self:
        if self.min_workers > self.max_workers:
            raise SettingsError(
                f"min_workers {self.min_workers} is more than max_workers {self.max_workers}; lower the one or "
                "raise the other",
                setting="min_workers",
            )
        if self.policy == "step_time" and "target" not in self.model_fields_set:
            raise SettingsError(
                "policy step_time without a target; set the seconds that a step may take", setting="policy"
            )
        return self

    def check_num_workers(self, num_workers: int) -> None:
        """Raises SettingsError unless the group may have that many workers."""
        if not self.min_workers <= num_workers <= self.max_workers:
            raise SettingsError(
                f"got {num_workers} workers; allowed: {self.min_workers} to {self.max_workers} (group.scaling)"
            )
