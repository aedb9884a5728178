"""What a decode group's replica counts of its master's reports."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from actors.group.master_status import COUNTERS, GAUGES
from cluster.serving.replica.metrics import GroupMetrics
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestStep, StepEvents
from lopa_ray.protocol.step_report import StepTiming
from support.master_statuses import HEALTHY
from support.paths import ROOT
from support.verified_decode import PROBLEM, VERIFIED

STATUS = replace(HEALTHY, workers=1, target_workers=1, max_num_seqs=8, steps=9)


def test_counters_follow_a_group_and_the_one_in_its_place() -> None:
    group = GroupMetrics("m")
    # The last one is another group's.
    for hits, saved, failed in ((0, 0, 0), (2, 64, 1), (2, 64, 1), (3, 80, 3), (1, 16, 0)):
        group.on_status(
            replace(STATUS, prefix_hits=hits, prefix_positions=saved, out_of_memory_steps=failed), 0
        )
    assert 'lopa_prefix_hits_total{model="m"} 4.0\n' in group.text()
    assert 'lopa_prefix_positions_total{model="m"} 96.0\n' in group.text()
    assert 'lopa_out_of_memory_steps_total{model="m"} 3.0\n' in group.text()


def test_every_field_that_declares_a_metric_is_exported() -> None:
    group = GroupMetrics("m")
    group.on_status(replace(STATUS, **dict.fromkeys((*COUNTERS, *GAUGES), 3)), 0)
    for name in (*(f"{name}_total" for name, _ in COUNTERS.values()), *(name for name, _ in GAUGES.values())):
        assert f'{name}{{model="m"}} 3.0\n' in group.text()


def test_the_page_has_every_metric() -> None:
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    names = re.findall(r"(?m)^# TYPE (\w+?)(?:_total)? ", GroupMetrics("m").text())
    assert names and [name for name in names if f"`{name}`" not in page] == []


def test_lost_groups_and_workers_are_counted() -> None:
    group = GroupMetrics("m")
    for lost_workers, lost_groups in ((1, 0), (1, 0), (0, 1), (2, 1), (0, 3)):
        group.on_status(replace(STATUS, lost_workers=lost_workers), lost_groups)
    assert 'lopa_lost_workers_total{model="m"} 3.0\n' in group.text()
    assert 'lopa_lost_groups_total{model="m"} 3.0\n' in group.text()


def test_queues_are_shown_by_key_and_all_addresses_as_one() -> None:
    group = GroupMetrics("m")
    for waiting in ({"key 1": 5, "address 10.0.0.1": 2, "address 10.0.0.2": 3}, {"key 2": 1}):
        group.on_status(replace(STATUS, waiting_by_client=waiting), 0)
        lines = [
            line for line in group.text().splitlines() if line.startswith("lopa_client_requests_waiting{")
        ]
        numbers = {
            line.partition('client="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines
        }
        expected = {"no key": 5, "key 1": 5} if "key 1" in waiting else {"no key": 0, "key 1": 0, "key 2": 1}
        assert numbers == expected


@pytest.mark.medium
def test_mean_depth_is_steps_of_the_rule_per_step_of_a_request() -> None:
    engine = LocalEngine.from_pretrained("demo")
    timing = StepTiming(plan=0.0, scatter=0.0, commit=0.0, forward=0.0, gather=0.0, select=0.0)
    group = GroupMetrics("m")
    steps = []

    def on_event(_: int, event: RequestStep) -> None:
        steps.append(event)

    sessions = [engine.create_session(PROBLEM, settings) for settings in (VERIFIED, VERIFIED.of_one_branch())]
    results = [result for _, result in engine.run(sessions, on_event=on_event)]
    for event in steps:
        group.on_step(StepEvents((event,), timing))
    deep = [event for event in steps if len(event.outcome.rule_steps) > 1]
    (one_branch,) = {result.rule_steps for result in results if isinstance(result, GenerationResult)}
    text = group.text()
    assert deep and len(steps) < 2 * one_branch
    assert f'lopa_rule_steps_total{{model="m"}} {2 * one_branch}.0\n' in text
    # A step whose drafts were accepted is one of lookahead's, once.
    assert f'lopa_branch_wins_total{{kind="lookahead",model="m"}} {len(deep)}.0\n' in text
    assert f'lopa_branch_wins_total{{kind="anchor",model="m"}} {len(steps) - len(deep)}.0\n' in text
