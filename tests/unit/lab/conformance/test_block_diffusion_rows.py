"""Rows of SDAR's and LLaDA2's decoders that say the same in other words, or record an end that is not one here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lopa_lab.conformance.cases import Case
from lopa_lab.conformance.recorded import recorded_settings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from support.paths import GOLDEN

Row = dict[str, Any]

SDAR, LLADA2 = "sdar_moe/sdar_moe_generate_cases", "llada2/llada2_generate_cases"


def as_case(row: Row) -> Case:
    return Case(Path("cases.jsonl"), 1, row["id"], row["kind"], row, row["model"], None)


def rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


def row_of(name: str, kind: str) -> Row:
    return min((row for row in rows(name) if row["kind"] == kind), key=lambda row: row["nfe"])


def settings_of(name: str, kind: str, change: Row) -> BlockDiffusionSettings:
    row = row_of(name, kind)
    row["settings"] |= change
    settings = recorded_settings(as_case(row))
    assert isinstance(settings, BlockDiffusionSettings)
    return settings


# Settings


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        (SDAR, "sdar_moe_dynamic", "confidence_threshold"),
        (LLADA2, "llada2_threshold", "threshold"),
    ],
)
def test_thresholds_that_no_probability_or_each_exceeds(name: str, kind: str, key: str) -> None:
    assert settings_of(name, kind, {key: 1.5}).confidence_threshold == 1.0
    assert settings_of(name, kind, {key: -1}).confidence_threshold == 0.0


@pytest.mark.parametrize(("name", "kind"), [(SDAR, "sdar_moe_dynamic"), (LLADA2, "llada2_threshold")])
def test_filters_of_the_published_samplers(name: str, kind: str) -> None:
    """A share of 0 still keeps the most likely token."""
    found = settings_of(name, kind, {"temperature": 0.7, "top_k": 5, "top_p": 0.9})
    assert (found.sdar_confidence, found.top_k, found.top_p) == (0.7, 5, 0.9)
    found = settings_of(name, kind, {"top_k": 5, "top_p": 0.0})
    assert (found.top_k, found.top_p) == (1, None)


# Ends
