"""Rows of SDAR's and LLaDA2's decoders: settings that have another name or range here, and calls that are compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lopa_lab.conformance.recorded import recorded_settings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from support.recorded_cases import Row, as_case, rows, verdict_of

SDAR, LLADA2 = "sdar_moe/sdar_moe_generate_cases", "llada2/llada2_generate_cases"
LLADA21 = "llada2/llada21_generate_cases"


def row_of(name: str, kind: str) -> Row:
    return min((row for row in rows(name) if row["kind"] == kind), key=lambda row: row["nfe"])


def settings_of(name: str, kind: str, change: Row) -> BlockDiffusionSettings:
    row = row_of(name, kind)
    row["settings"] |= change
    settings = recorded_settings(as_case(row))
    assert isinstance(settings, BlockDiffusionSettings)
    return settings


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


def edited_row() -> Row:
    return min((row for row in rows(LLADA21) if len(row["edits"]) > 3), key=lambda row: row["nfe"])


def row_with_eos_in_the_prompt() -> Row:
    """Its calls are compared up to the end that this EOS makes there."""
    return next(row for row in rows(LLADA2) if "returned_length" in row)


@pytest.mark.medium
@pytest.mark.parametrize("make_row", [edited_row, row_with_eos_in_the_prompt])
def test_changed_calls_fills_and_edits_are_noticed(make_row: Callable[[], Row]) -> None:
    row = make_row()
    changes = {
        "nfe": row["nfe"] + 1,
        "windows": [[0, 1, 0], *row["windows"][1:]],
        "fill_step": [row["fill_step"][0] + 1, *row["fill_step"][1:]],
        "canvas": [row["canvas"][0] ^ 1, *row["canvas"][1:]],
        "fill_conf": [row["fill_conf"][0] + 2e-4, *row["fill_conf"][1:]],
    }
    if "edits" in row:
        (call, at, old, new), *later = row["edits"]
        changes |= {
            "edits": [[call, at, old ^ 1, new], *later],
            "edit_conf": [row["edit_conf"][0] + 2e-4, *row["edit_conf"][1:]],
            "tokens": [*row["tokens"][:-1], row["tokens"][-1] ^ 1],
        }
    for key, value in changes.items():
        assert verdict_of(row | {key: value}).status == "differs", key
