"""What else a plan may ask for, on a fake CUDA device: constraints, penalties, targets, prefixes, commits."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from lopa_lab.bench.step_plans import step_of
from lopa_ray.protocol.logit_changes import LogitChanges, pack_ids
from lopa_ray.protocol.plan import Plan, StepPlan, StoredPrefix
from lopa_ray.protocol.plan_inputs import SoftInputs
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import ChooseTokens, ScoreTargets
from support.device_log import DeviceLog
from support.fake_cuda import fake_cuda
from support.fake_steps import (
    PREFIX,
    VOCAB,
    FakeShards,
    StepSetup,
    config_of,
    execute,
    in_segments,
    two_plans,
)

BRANCHES, ROWS = 4, 32

SAMPLED = SamplingParams(0.7, top_p=0.9, top_k=8, seed=3)


def constrained(plan: Plan) -> Plan:
    """Every second position has one of two sets of tokens, the others may get any."""
    bits = np.zeros((2, -(-VOCAB // 8)), np.uint8)
    bits[0, :5], bits[1, 3:9] = 255, 127
    ids = tuple(at // 2 % 2 if at % 2 else -1 for at in range(len(plan.branches[0].scored)))
    return replace(
        plan,
        token_bitmasks=tuple(zlib.compress(row.tobytes()) for row in bits),
        branches=tuple(replace(branch, scoring=ChooseTokens(bitmask_ids=ids)) for branch in plan.branches),
    )


def penalized(plan: Plan) -> Plan:
    """Each branch has a fill of its own, which its penalties count."""
    changes = LogitChanges(
        1.2,
        0.5,
        0.1,
        biased=pack_ids([7, 19]),
        biases=np.array([-100.0, 1.5]).tobytes(),
        prompt=pack_ids(range(5, 25)),
        answer=pack_ids([3, 3, 4]),
    )
    branches = tuple(
        replace(branch, fills=((plan.start + at, 7),)) for at, branch in enumerate(plan.branches)
    )
    return replace(plan, branches=branches, logit_changes=changes)


def with_targets(plan: Plan) -> Plan:
    """The probabilities of given tokens are asked for."""
    targets = ScoreTargets(tuple(range(len(plan.branches[0].scored))))
    return replace(plan, branches=tuple(replace(branch, scoring=targets) for branch in plan.branches))


def sampled(plan: Plan) -> Plan:
    """With temperature and both filters."""
    branches = tuple(replace(branch, scoring=ChooseTokens(plan.step)) for branch in plan.branches)
    return replace(plan, sampling_params=SAMPLED, branches=branches)


def with_soft_inputs(plan: Plan) -> Plan:
    """Each input is half its token and half the mask token."""
    return replace(plan, inputs=SoftInputs((0.5,) * len(plan.canvas)))


def shared(plan: Plan) -> Plan:
    """Single phase: all branches stage the same K/V."""
    commit = plan.commit and replace(plan.commit, shared=True)
    return replace(in_segments(plan), stage_shared=True, commit=commit)


def without_staging(plan: Plan) -> Plan:
    """Nothing is staged, so nothing can be committed."""
    branches = tuple(replace(branch, to_stage=()) for branch in plan.branches)
    return replace(plan, branches=branches, commit=None, cached=(range(PREFIX),))


CHANGES: dict[str, tuple[Callable[[Plan], Plan], ...]] = {
    "constraint": (constrained,),
    "constraint, sampled": (constrained, sampled),
    "penalties": (penalized,),
    "penalties, sampled": (penalized, sampled),
    "penalties, constraint": (penalized, constrained),
    "targets": (with_targets,),
    "soft inputs": (with_soft_inputs,),
    "single phase": (shared,),
    "no staging": (without_staging,),
}


def changed(plan: Plan, name: str) -> Plan:
    for change in CHANGES[name]:
        plan = change(plan)
    return plan


MOST_MORE = 85
"""Kernels that the dearest of them adds to a step."""


@pytest.mark.parametrize(
    ("family", "name"),
    [*(("dream", name) for name in CHANGES), ("llada2", "soft inputs"), ("llada2", "penalties, sampled")],
)
def test_plans(family: str, name: str) -> None:
    """As many kernels for any number of requests."""
    setup = StepSetup(config_of(family))
    one, three = (setup.log(requests, change=lambda plan: changed(plan, name)) for requests in (1, 3))
    assert one.faults == three.faults == []
    assert one.total == three.total <= setup.log().total + MOST_MORE


@pytest.mark.parametrize("name", ["penalties, constraint", "targets"])
def test_plans_over_shards(name: str) -> None:
    setup = StepSetup(config_of("dream"), tp_group=FakeShards())
    assert setup.log(change=lambda plan: changed(plan, name)).faults == []


def test_requests_of_all_kinds_in_one_step() -> None:
    with fake_cuda():
        runner = StepSetup(config_of("dream")).runner()
        first, second = two_plans(runner.vocabulary.mask_token_id, BRANCHES, ROWS)
        names = [name for name in CHANGES if name not in ("single phase", "no staging")]
        execute(runner, step_of(runner, [changed(first, name) for name in names]))
        log = execute(runner, step_of(runner, [changed(second, name) for name in names]))
    assert log.faults == []


@pytest.mark.parametrize("family", ["dream", "llada2"])
def test_stored_prefixes(family: str) -> None:
    """One request saves a prefix after its commit. Another one, later, starts with it and computes the rest."""
    with fake_cuda():
        runner = StepSetup(config_of(family)).runner()
        first, second = two_plans(runner.vocabulary.mask_token_id, BRANCHES, ROWS)
        stored = StoredPrefix(1, range(PREFIX))
        execute(runner, step_of(runner, [first]))
        saving = step_of(runner, [second])
        saved = execute(runner, _with_requests(saving, save_prefix=stored))
        assert len(runner.slots.prefixes) == 1
        after = replace(
            first,
            start=0,
            canvas=(3,) * PREFIX + first.canvas,
            cached=(),
            branches=first.branches[:1],
        )
        loading = step_of(runner, [after], slots=[1])
        loaded = execute(runner, _with_requests(loading, stored_prefix=(stored,)))
    assert saved.faults == loaded.faults == []


def test_a_repeated_step_commits_once() -> None:
    """A step that is repeated after a loss has its commits behind it."""
    with fake_cuda():
        runner = StepSetup(config_of("dream")).runner()
        first, second = two_plans(runner.vocabulary.mask_token_id, BRANCHES, ROWS)
        execute(runner, step_of(runner, [first] * 4))
        plan = step_of(runner, [second] * 4)
        logs = [execute(runner, plan), execute(runner, plan)]
    assert [log.faults for log in logs] == [[], []]
    assert [log.launches["lopa_ray.commit_rows.default"] for log in logs] == [1, 0]


class FakeTransfer:
    """Brings K/V of rank 0 to a worker. The host waits once per call."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.waits = 0

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        self.waits += 1


def commits_of_workers(requests: int, rank: int) -> tuple[DeviceLog, FakeTransfer]:
    """The log of a step whose commits come from rank 0, on the worker `rank`."""
    transfer = FakeTransfer(rank)
    with fake_cuda():
        runner = StepSetup(config_of("dream")).runner()
        first, second = two_plans(runner.vocabulary.mask_token_id, BRANCHES, ROWS)
        before = step_of(runner, [first] * requests)
        if rank == 0:
            execute(runner, before)
        plan = _with_requests(step_of(runner, [second] * requests), source_rank=0)
        if rank != 0:
            for slot in range(requests):
                runner.cache.reset(slot, slot + 1)
                runner.cache.mark_committed(slot, first.cached)
        return execute(runner, plan, transfer), transfer


@pytest.mark.parametrize("rank", [0, 1], ids=["source", "receiver"])
def test_commits_of_other_workers_take_one_wait_for_all_requests(rank: int) -> None:
    """In the transfer alone. They are written to the cache in one kernel, as commits of this worker's K/V are."""
    for requests in (1, 4):
        log, transfer = commits_of_workers(requests, rank)
        assert transfer.waits == 1
        assert log.faults == []
        assert log.launches["lopa_ray.commit_rows.default"] == 1


def _with_requests(step: StepPlan, **fields: object) -> StepPlan:
    """The same step with these fields of its scheduled requests."""
    return replace(step, requests=tuple(replace(scheduled, **fields) for scheduled in step.requests))
