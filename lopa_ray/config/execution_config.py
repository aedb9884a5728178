"""ExecutionConfig: the sections of a configuration that say how forwards run."""

from __future__ import annotations

from typing import Self, get_args

from pydantic import Field, model_validator

from lopa_ray.config.group_settings import NEED_AN_ACCELERATOR, AutoSwitch, GroupSettings, TransferName
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.config.strict import StrictModel


class ExecutionConfig(StrictModel):
    """The model, and the decode group that runs it."""

    model: ModelSettings = Field(default_factory=ModelSettings)
    """The checkpoint."""

    group: GroupSettings = Field(default_factory=GroupSettings)
    """The decode group."""

    @property
    def overlap(self) -> AutoSwitch:
        """`group.overlap_schedule`, on a CPU false for auto."""
        overlap = self.group.overlap_schedule
        return False if overlap == "auto" and self.model.device == "cpu" else overlap

    @property
    def transfer(self) -> TransferName:
        """`group.transfer`; for auto the first one that the workers can use."""
        names: tuple[TransferName, ...] = get_args(TransferName)
        if self.group.transfer != "auto":
            return self.group.transfer
        return next(name for name in names if not (self._shares_accelerators and name in NEED_AN_ACCELERATOR))

    @property
    def _shares_accelerators(self) -> bool:
        return self.model.device != "cpu" and self.group.num_accelerators < 1

    @model_validator(mode="after")
    def _group_fits_the_model(self) -> Self:
        group, shares = self.group, f"with num_accelerators {self.group.num_accelerators}"
        shards = f"group.tensor_parallel_size {group.tensor_parallel_size}"
        if group.tensor_parallel_size > 1 and self._shares_accelerators:
            raise ValueError(
                f"{shards} {shares}: shards that share an accelerator cannot form a collective; set num_accelerators "
                "to 1, or tensor_parallel_size to 1"
            )
        if self._shares_accelerators and group.transfer in NEED_AN_ACCELERATOR:
            others = [name for name in get_args(TransferName) if name not in NEED_AN_ACCELERATOR]
            raise ValueError(
                f"group.transfer {group.transfer} {shares}: workers that share an accelerator cannot form a "
                f"collective; use {' or '.join([*others, 'auto'])}"
            )
        reserved = [group.num_cpus, *group.resources.values()]
        if group.tensor_parallel_size > 1 and self.model.device == "cpu" and not any(reserved):
            raise ValueError(
                f"{shards} with num_cpus 0: shards need a reservation that keeps them on one node; set num_cpus above "
                "0, or tensor_parallel_size to 1"
            )
        if group.tensor_parallel_size > 1 and self.model.implementation == "transformers":
            raise ValueError(
                f"{shards} with model.implementation transformers: only native models can be cut; set "
                "tensor_parallel_size to 1, or implementation to auto"
            )
        return self
