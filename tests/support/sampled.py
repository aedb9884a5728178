"""Tests with many cases of one kind, of which `make test` and `.ci/run` run a part; `make test-long` runs them all."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from support.paths import TESTS

SAMPLED = {
    "on_ray/test_faulty_requests.py": 6,
    "on_ray/test_shown_commands.py": 2,
    "stand_in/test_captures.py": 4,
    "stand_in/test_compiled_shapes.py": 3,
    "stand_in/test_launchers.py": 6,
    "stand_in/test_step_inputs.py": 2,
    "stand_in/test_steps.py": 5,
    "unit/choices/test_tool_answers.py": 3,
    "unit/decoding/test_blocks_in_flight.py": 3,
    "unit/decoding/test_blockwise_decoders.py": 2,
    "unit/decoding/test_given_tokens.py": 2,
    "unit/decoding/test_nemotron.py": 3,
    "unit/decoding/test_sub_blocks.py": 3,
    "unit/decoding/test_verified_models.py": 2,
    "unit/deploy/test_distributions.py": 2,
    "unit/engine/test_structured_output.py": 2,
    "unit/execution/test_compiled_layers.py": 2,
    "unit/execution/test_decisions.py": 2,
    "unit/execution/test_logit_changes.py": 2,
    "unit/execution/test_runner_bit_equality.py": 3,
    "unit/execution/test_step_graphs.py": 2,
    "unit/execution/test_step_launches.py": 2,
    "unit/execution/test_tensor_parallel.py": 3,
    "unit/model/test_fp8.py": 3,
    "unit/scheduling/test_fair_queue.py": 2,
    "unit/scheduling/test_prefix_index.py": 2,
    "unit/scheduling/test_recovery.py": 2,
    "unit/scheduling/test_two_steps_in_flight.py": 2,
}
"""File → how many cases of a test one is drawn from. The same ones are drawn in every run."""

SAMPLED_SLOW = {"unit/lab/conformance/test_golden.py": 2}
"""The same for files of which only slow cases are drawn."""

FEW = 3
"""Cases that a test may have without being sampled: so few differ in what they are about."""


def mark_what_is_left_out(items: list[pytest.Item]) -> None:
    """Mark the cases that are not drawn `long`. Cases that are `slow` are drawn apart from the others."""
    cases: dict[tuple[Path, str, bool], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("nightly") and item.path.is_relative_to(TESTS):
            test = item.nodeid.partition("[")[0]
            cases[item.path, test, item.get_closest_marker("slow") is not None].append(item)
    for (file, _, slow), every in cases.items():
        name = file.relative_to(TESTS).as_posix()
        share = SAMPLED.get(name, SAMPLED_SLOW.get(name, 1) if slow else 1)
        if len(every) <= FEW or share == 1:
            continue
        # By their names: neighbours often differ in one parameter alone.
        order = sorted(every, key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in order[math.ceil(len(every) / share) :]:
            item.add_marker("nightly")
