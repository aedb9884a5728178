"""Steps of any size, as plans without a session: for measurements and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

from lopa_ray.engine.config import Config
from lopa_ray.execution.model_loader import resolve_auto
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, Segment, StepPlan
from lopa_ray.protocol.sampling_params import SamplingParams


def plan_of(
    mask: int,
    branches: int,
    rows: int,
    *,
    start: int = 512,
    step: int = 2,
    segments: tuple[Segment, ...] = (),
    committed: int = 0,
    staged: int = 0,
    sampling: SamplingParams | None = None,
) -> Plan:
    """A window of `rows` masks after a cached prefix, of which the step before has staged the last `committed`."""
    stop = start + rows
    to_stage = (range(start, start + staged),) if staged else ()
    branch = Branch(segments or ((stop, stop),), range(start, stop), to_stage=to_stage)
    return Plan(
        step=step,
        start=start,
        canvas=(mask,) * rows,
        branches=(branch,) * branches,
        cached=(range(start),) if start else (),
        commit=Commit(step - 1, branches - 1, (range(start - committed, start),), False)
        if committed
        else None,
        sampling_params=sampling or SamplingParams(),
    )


@dataclass(frozen=True, slots=True)
class StepSize:
    """Requests with so many branches each, of windows of masks after a cached prefix."""

    requests: int
    branches: int
    """Branches of each request."""
    window: int
    prefix: int
    """Positions, as the window."""

    @classmethod
    def grid(
        cls, requests: Sequence[int], branches: Sequence[int], windows: Sequence[int], prefixes: Sequence[int]
    ) -> list[Self]:
        """All combinations."""
        return [cls(*size) for size in product(requests, branches, windows, prefixes)]

    @property
    def rows(self) -> int:
        """Rows of the packed forward."""
        return self.requests * self.branches * self.window

    def plans(self, mask_token_id: int, **options: Any) -> list[Plan]:
        """A plan per request; `options`: others of `plan_of`."""
        plan = plan_of(mask_token_id, self.branches, self.window, start=self.prefix, **options)
        return [plan] * self.requests


def step_of(runner: BranchRunner, plans: Sequence[Plan], slots: Sequence[int] | None = None) -> StepPlan:
    """One worker's step, with the cache as the plans presuppose it; the contents of the cache are arbitrary."""
    requests = []
    for slot, plan in zip(range(len(plans)) if slots is None else slots, plans, strict=True):
        if runner.cache.request_ids[slot] is None:
            runner.cache.reset(slot, slot + 1)
            runner.cache.mark_committed(slot, plan.cached)
        requests.append(ScheduledRequest(slot + 1, slot, plan, tuple(range(len(plan.branches)))))
    return StepPlan(0, plans[0].step, tuple(requests))


def resolved_spec(config: Config, **changes: Any) -> ModelSpec:
    """The model of a configuration with these changes of the section `model`; no setting of it is `auto` any more."""
    return resolve_auto(ModelSpec.read(config.replace(model=config.model.replace(**changes))))
