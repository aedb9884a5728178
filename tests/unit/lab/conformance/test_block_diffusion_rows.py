"""Rows of SDAR's and LLaDA2's decoders that say the same in other words, or record an end that is not one here."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_lab.conformance.cases import Case, Verdict
from lopa_lab.conformance.recorded import recorded_settings
from lopa_lab.conformance.replay import replay
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.engine.local import LocalEngine
from support.paths import GOLDEN

Row = dict[str, Any]

SDAR, LLADA2 = "sdar_moe/sdar_moe_generate_cases", "llada2/llada2_generate_cases"
LLADA21 = "llada2/llada21_generate_cases"


def as_case(row: Row) -> Case:
    return Case(Path("cases.jsonl"), 1, row["id"], row["kind"], row, row["model"], None)


def verdict_of(row: Row) -> Verdict:
    torch.set_num_threads(1)
    (verdict,) = replay([as_case(row)], GOLDEN / "models", LocalEngine.from_config)
    return verdict


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
    ("name", "kind", "change"),
    [
        (SDAR, "sdar_moe_dynamic", {"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
        (SDAR, "sdar_moe_dynamic", {"top_k": -1, "top_p": 1}),
        (SDAR, "sdar_moe_dynamic", {"top_k": None, "top_p": None, "stopping_criteria_idx": None}),
        (SDAR, "sdar_moe_dynamic", {"stopping_criteria_idx": [], "eb_threshold": None}),
        (LLADA2, "llada2_threshold", {"temperature": 0.0, "top_k": 0, "top_p": 1.0}),
        (LLADA2, "llada2_threshold", {"temperature": 0, "top_k": None, "top_p": None}),
        (LLADA2, "llada2_threshold", {"temperature": 1.0, "minimal_topk": 1, "eos_early_stop": False}),
    ],
)
def test_settings_that_are_off_change_nothing(name: str, kind: str, change: Row) -> None:
    row = row_of(name, kind)
    plain = recorded_settings(as_case(row))
    assert settings_of(name, kind, change) == plain
    row["settings"] |= change
    assert verdict_of(row).status == "passed"


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


@pytest.mark.parametrize("ends", [[], [96]])
def test_an_eos_that_is_not_among_the_stop_tokens_ends_nothing(ends: list[int]) -> None:
    """The longest run without stop tokens in which EOS occurs, as one whose stop tokens do not."""
    without = [
        row
        for row in rows(SDAR)
        if "stopping_criteria_idx" not in row["settings"] and 127 not in row["prompt"]
    ]
    row = max((row for row in without if 126 in row["tokens"]), key=lambda row: row["nfe"])
    assert not set(ends) & set(row["tokens"])
    row["settings"]["stopping_criteria_idx"] = ends
    assert verdict_of(row).status == "passed"


def row_with_eos_in_the_prompt() -> Row:
    return next(row for row in rows(LLADA2) if "returned_length" in row)


def test_calls_are_compared_up_to_the_end_that_an_eos_in_the_prompt_makes() -> None:
    row = row_with_eos_in_the_prompt()
    assert verdict_of(row).status == "passed"
    changes = {
        "nfe": row["nfe"] + 1,
        "windows": [[0, 1, 0], *row["windows"][1:]],
        "fill_step": [row["fill_step"][0] + 1, *row["fill_step"][1:]],
        "canvas": [row["canvas"][0] ^ 1, *row["canvas"][1:]],
        "fill_conf": [row["fill_conf"][0] + 2e-4, *row["fill_conf"][1:]],
    }
    for key, value in changes.items():
        assert verdict_of(row | {key: value}).status == "differs", key


def test_calls_fills_and_edits_are_compared() -> None:
    row = min((row for row in rows(LLADA21) if len(row["edits"]) > 3), key=lambda row: row["nfe"])
    assert verdict_of(row).status == "passed"
    call, at, old, new = row["edits"][2]
    edits = [*row["edits"][:2], [call, at, old ^ 1, new], *row["edits"][3:]]
    changes = {
        "nfe": row["nfe"] + 1,
        "windows": row["windows"][:-1],
        "fill_step": [row["fill_step"][0] + 1, *row["fill_step"][1:]],
        "edits": edits,
        "canvas": [row["canvas"][0] ^ 1, *row["canvas"][1:]],
        "tokens": [*row["tokens"][:-1], row["tokens"][-1] ^ 1],
        "fill_conf": [row["fill_conf"][0] + 2e-4, *row["fill_conf"][1:]],
        "edit_conf": [row["edit_conf"][0] + 2e-4, *row["edit_conf"][1:]],
    }
    for key, value in changes.items():
        verdict = verdict_of(row | {key: value})
        assert [difference.what for difference in verdict.differences] == [key]
    unread = {"steps": 3, "minimal_topk": 2, "temperature": 0, "num_to_transfer": 1}
    assert verdict_of(row | {"settings": row["settings"] | unread}).status == "passed"


def no_calls(canvas: int, **settings: int) -> Row:
    row = copy.deepcopy(row_of(LLADA2, "llada2_threshold"))
    row["settings"] |= settings
    row |= {"prompt": [5, 6, 7], "nfe": 0, "windows": [], "tokens": [127] * row["settings"]["gen_length"]}
    return row | {"canvas": [127] * canvas, "fill_step": [0] * canvas, "fill_conf": [0.0] * canvas}


@pytest.mark.parametrize(
    "settings", [{"gen_length": 4, "minimal_topk": 8}, {"gen_length": 0}, {"gen_length": 4, "steps": 0}]
)
def test_no_calls_return_masks(settings: dict[str, int]) -> None:
    for canvas in (5, 0):
        row = no_calls(canvas, block_length=8, **settings)
        assert verdict_of(row).status == "passed"
        assert verdict_of(row | {"tokens": [*row["tokens"], 3]}).status == "differs"
        assert verdict_of(row | {"nfe": 1, "windows": [[0, 8, 0]]}).status == "differs"
