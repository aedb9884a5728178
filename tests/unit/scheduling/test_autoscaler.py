"""Groups that follow their load: policies, and what an autoscaler makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from lopa_ray.config.scaling_settings import ScalingSettings
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.scheduling.autoscaler import (
    LOOKS_PER_START,
    LOOKS_TO_SHRINK,
    POLICIES,
    Autoscaler,
    Load,
    LoadMeter,
)
from support.paths import DATA

RECORDED = DATA / "recorded_loads.jsonl"

IDLE = Load(workers=1, in_flight=0, waiting=0, branches=0.0, step_s=0.0)


def settings(**changes: Any) -> ScalingSettings:
    return ScalingSettings(**{"max_workers": 8, **changes})


def followed(branches: Iterable[float], start: int = 1, **changes: Any) -> list[int]:
    autoscaler = Autoscaler(settings(**changes), 1, start)
    return [autoscaler.observe(replace(IDLE, branches=float(number))) for number in branches]


# Policies


def test_each_policy_counts_what_it_says() -> None:
    load = Load(workers=3, in_flight=4, waiting=5, branches=12.0, step_s=0.2)
    assert POLICIES["branches"](load, 4.0) == 3.0
    assert POLICIES["requests"](load, 2.0) == 4.5
    assert POLICIES["step_time"](load, 0.1) == pytest.approx(6.0)
    assert POLICIES["step_time"](load, 0.01) == 12.0, "no more workers than branches"
    assert all(policy(IDLE, 1.0) == 0 for policy in POLICIES.values())


def test_a_load_has_the_means_of_the_steps_since_the_one_before() -> None:
    meter = LoadMeter()
    meter.record_step(4, 0.1)
    meter.record_step(8, 0.3)
    assert meter.take_load(workers=2, in_flight=3, waiting=1) == Load(2, 3, 1, 6.0, 0.2)
    assert meter.take_load(workers=1, in_flight=0, waiting=0) == IDLE


LOADS = st.builds(
    Load,
    workers=st.integers(1, 64),
    in_flight=st.integers(0, 64),
    waiting=st.integers(0, 1000),
    branches=st.floats(0, 2000),
    step_s=st.floats(0, 100),
)


@pytest.mark.medium
@given(st.sampled_from(sorted(POLICIES)), st.floats(0.01, 100), LOADS)
def test_an_autoscaler_gets_to_the_demand_within_its_bounds(policy: Any, target: float, load: Load) -> None:
    autoscaler = Autoscaler(settings(policy=policy, target=target), 2, 2)
    for _ in range(LOOKS_TO_SHRINK + 1):
        workers = autoscaler.observe(load)
    assert 2 <= workers <= 8
    demand = POLICIES[policy](load, target)
    assert workers == 8 or workers >= demand - 1e-6
    assert workers == 2 or workers - 1 < demand


# Hysteresis and cool-down


def test_more_workers_must_be_in_demand_for_a_while_and_fewer_for_longer() -> None:
    assert followed([4] * 4) == [1, 1, 4, 4]
    assert followed([1] * (LOOKS_TO_SHRINK + 2), start=4) == [4] * LOOKS_TO_SHRINK + [1, 1]
    assert followed([4, 4, 1, 4, 4, 1, 4]) == [1] * 7, "a demand that breaks off begins anew"


def test_a_change_is_the_least_that_was_in_demand() -> None:
    assert followed([8, 3, 6]) == [1, 1, 3]
    falls = [1] * (LOOKS_TO_SHRINK - 1) + [5, 2]
    assert followed(falls, start=8) == [8] * LOOKS_TO_SHRINK + [5]


def test_changes_keep_a_distance() -> None:
    assert followed([2, 2, 2, *[4] * 10]) == [1, 1, *[2] * LOOKS_PER_START, 4, 4, 4]


def test_whoever_resizes_decides_and_the_load_is_followed_from_there() -> None:
    autoscaler = Autoscaler(settings(), 1, 1)
    autoscaler.override(2)
    loads = [replace(IDLE, branches=6.0)] * (LOOKS_PER_START + 1)
    assert [autoscaler.observe(load) for load in loads] == [2] * (LOOKS_PER_START - 1) + [6, 6]


@pytest.mark.medium
@given(st.integers(1, 7), st.lists(st.floats(-0.4, 0.4), min_size=50, max_size=50))
def test_a_load_on_the_border_of_two_numbers_changes_nothing_for_long(at: int, noise: list[float]) -> None:
    numbers = followed([at + change for change in noise], start=at)
    assert sum(a != b for a, b in pairwise([at, *numbers])) <= 2


def test_sums_of_fractions_are_no_reason_for_another_worker() -> None:
    assert followed([0.1 + 0.2] * 3, target=0.1)[-1] == 3


# Settings


@pytest.mark.parametrize(
    ("scaling", "part"),
    [
        ({"max_workers": 0}, "max_workers: got 0"),
        ({"max_workers": 1}, "num_workers 2 is more than scaling.max_workers 1"),
        ({"max_workers": 4, "policy": "step_time"}, "step_time without a target"),
        ({"max_workers": 4, "min_workers": 3}, "it is gone: group.num_workers is the minimum"),
    ],
)
def test_settings_that_are_refused(scaling: Any, part: str) -> None:
    with pytest.raises(SettingsError) as error:
        Config.load("demo", {"group": {"scaling": scaling}})
    assert part in str(error.value)


def test_settings_survive_the_way_to_another_process() -> None:
    config = Config.load("demo", {"group": {"scaling": {"max_workers": 4, "policy": "requests"}}})
    assert config.group.scaling == ScalingSettings(max_workers=4, policy="requests")
    assert Config.parse(config.as_dict()) == config


# A recorded load


@pytest.fixture(scope="module")
def recorded() -> list[Load]:
    """A row per second of a real decoder: hardly any requests for 10 seconds, too many for 12, and none after that."""
    return [Load(**json.loads(line)) for line in RECORDED.read_text().splitlines()]


@pytest.mark.parametrize(("policy", "target"), [("branches", 9.0), ("requests", 10.0), ("step_time", 0.02)])
def test_a_recorded_rush_is_followed(recorded: list[Load], policy: Any, target: float) -> None:
    autoscaler = Autoscaler(settings(max_workers=4, policy=policy, target=target), 1, 1)
    loads = [*recorded, *recorded[-1:] * 2 * LOOKS_TO_SHRINK]
    wanted = [1, *(autoscaler.observe(load) for load in loads)]
    assert set(wanted[:11]) == {1} and min(wanted[23:26]) >= 3 and wanted[-1] == 1, wanted
    changes = [at for at, (old, new) in enumerate(pairwise(wanted)) if new != old]
    assert len(changes) <= 6
    assert all(later - earlier >= LOOKS_PER_START for earlier, later in pairwise(changes))
