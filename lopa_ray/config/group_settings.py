"""The section `group` of a configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from lopa_ray.config.scaling_settings import ScalingSettings
from lopa_ray.config.strict import StrictModel, numbers_from_text
from lopa_ray.errors import SettingsError
from lopa_ray.model.experts_config import ExpertParallel

RAY_BUILTIN_RESOURCES = ("CPU", "GPU", "NPU", "memory", "object_store_memory")

AutoSwitch: TypeAlias = bool | Literal["auto"]

TransferName: TypeAlias = Literal["collective", "object_store"]
"""Each selects a class in `actors/transfer/kv_transfer.py`; auto stands for the first one that workers can use."""

NEED_AN_ACCELERATOR: frozenset[TransferName] = frozenset({"collective"})
"""Transfers for workers that do not share an accelerator."""

MIN_HUNG_AFTER_S = 4.0  # on a busy machine a process may have to wait for its turn


class GroupSettings(StrictModel):
    """One decode group: the number of branch workers, and the resources of each."""

    num_workers: int = Field(default=2, ge=1)
    """Branch workers. More make a step faster; they never change how many branches it has."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """Actors per worker. From 2 on each holds a shard of the model, and all of a worker's are on one node."""

    expert_parallel: ExpertParallel = "auto"
    """true: each shard has whole experts of a mixture; false: a part of the width of each; auto: whole experts where a
    part would have fewer than 64 columns, or the width has no equal parts. Shared experts, which take every row, are
    cut by width."""

    scaling: ScalingSettings | None = None
    """The way the number of workers follows the load, from num_workers on; null: the number stays."""

    num_cpus: float = Field(default=1.0, ge=0.0)
    """CPUs per worker, or per shard of one (Ray resource `CPU`; fractions allowed). For each whole one it has a torch
    thread, and one at least."""

    num_accelerators: float = Field(default=1.0, gt=0.0)
    """GPUs or NPUs per worker or shard where the device is cuda or npu; below 1 workers share one."""

    resources: dict[str, float] = Field(default_factory=dict)
    """Further Ray resources per worker or shard."""

    wait_for_nodes: bool = False
    """Wait up to `start_timeout_s` for nodes that an autoscaler adds, if the present nodes have no room."""

    overlap_schedule: AutoSwitch = "auto"
    """Two or more requests in flight take turns by halves: the host plans, packs and takes in one half while the device
    computes the other. It changes the speed, never the tokens. false: a step has all requests; auto: false on a CPU,
    which does both itself, and elsewhere true where steps have so many rows that two halves take hardly longer than the
    whole."""

    forward_costs: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0.0)]] | None = Field(
        default=None, min_length=1
    )
    """Rows of a worker's forward → milliseconds. `num_branches` auto weighs drafts by them: they change the speed and
    the number of steps, never the tokens. null: measured once, before the first step of a request that asks for it,
    and kept in a file for later starts; a table here makes steps reproducible."""

    transfer: Literal["auto", TransferName] = "auto"
    """The way a winner's K/V travels. collective: from device to device; object_store: through the memory of the hosts,
    for workers that share an accelerator; auto: the first of these that the workers can use."""

    step_timeout_s: float = Field(default=60.0, gt=0.0)
    """A worker that has not answered a step for this long is lost. Set it to many times a step of the model: limits of
    processes that compute no steps follow it (`hung_after_s`)."""

    start_timeout_s: float = Field(default=600.0, gt=0.0)
    """Time for workers to be placed and to load the model. A worker that does not answer meanwhile is lost sooner
    (`loading_hung_after_s`). So long requests wait, too, for a group that takes the place of one that was lost."""

    max_requests_per_client: int | None = Field(default=None, ge=1)
    """Requests of one client that a server's group has at once, in slots or waiting; it refuses others with 429. null:
    32 times `max_num_seqs`."""

    @property
    def threads(self) -> int:
        return max(1, int(self.num_cpus))

    @property
    def hung_after_s(self) -> float:
        """Seconds without an answer after which a process that answers at once, a master or a server's replica, counts
        as hung. Between two answers it prepares and reads a step at most, a small part of what workers take for it.
        Processes that compile a pattern, schema or structural tag may take as much processor time."""
        return max(MIN_HUNG_AFTER_S, self.step_timeout_s / 15)

    @property
    def loading_hung_after_s(self) -> float:
        """The same for a worker that imports its libraries or loads its model. It answers from a second thread, which
        the GIL can block for seconds while a large library loads."""
        return 3 * self.hung_after_s

    @property
    def max_workers(self) -> int:
        return self.num_workers if self.scaling is None else self.scaling.max_workers

    @property
    def max_actors(self) -> int:
        """The same in actors, each of which holds a model or a shard of it."""
        return self.max_workers * self.tensor_parallel_size

    def check_resize(self, num_workers: int) -> None:
        """Raises SettingsError unless a running group may have that many workers."""
        if not self.num_workers <= num_workers <= self.max_workers:
            raise SettingsError(
                f"got {num_workers} workers; allowed: {self.num_workers} to {self.max_workers} (group.scaling)"
            )

    @model_validator(mode="after")
    def _workers_and_experts_fit(self) -> Self:
        if self.num_workers > self.max_workers:
            raise SettingsError(
                f"num_workers {self.num_workers} is more than scaling.max_workers {self.max_workers}; lower the one or "
                "raise the other",
                setting="num_workers",
            )
        if self.expert_parallel is True and self.tensor_parallel_size == 1:
            raise SettingsError(
                "expert_parallel true with tensor_parallel_size 1: there are no shards for the experts; set "
                "tensor_parallel_size to 2 or more, or leave expert_parallel out",
                setting="expert_parallel",
            )
        return self

    @field_validator("expert_parallel", "overlap_schedule", mode="before")
    @classmethod
    def _one_of_three(cls, value: Any) -> Any:
        if not (isinstance(value, bool) or value == "auto"):
            raise ValueError(f"got {value!r}; allowed: true, false or auto")
        return value

    @field_validator("forward_costs", mode="before")
    @classmethod
    def _rows_from_text(cls, value: Any) -> Any:
        return numbers_from_text(value)

    @field_validator("num_accelerators")
    @classmethod
    def _one_device_per_actor(cls, value: float) -> float:
        if value > 1:
            raise ValueError(
                f"got {value}; allowed: 1, or a share of one below 1: a worker or shard computes on one GPU or NPU. To "
                "use more, set num_workers, or tensor_parallel_size for a model in shards"
            )
        return value

    @field_validator("resources")
    @classmethod
    def _custom_resources(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if name in RAY_BUILTIN_RESOURCES:
                raise ValueError(
                    f"got {name}; allowed: custom resources (num_cpus and num_accelerators set the others)"
                )
            if amount <= 0:
                raise ValueError(f"got {name}: {amount}; allowed: amounts above 0")
        return value
