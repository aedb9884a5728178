"""Rows of Nemotron-Labs-Diffusion that end in another place than the recorded ones, made from those."""

from __future__ import annotations

import copy

import pytest

from lopa_lab.conformance.recorded import recorded_settings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.engine.local import LocalEngine
from support.paths import GOLDEN
from support.recorded_cases import Row, as_case, rows as recorded_rows, verdict_of

pytestmark = pytest.mark.medium


def rows(name: str, kind: str) -> list[Row]:
    return [row for row in recorded_rows(f"nemotron/nemotron_{name}_cases") if row["kind"] == kind]


def cut(row: Row, length: int, eos: int) -> Row:
    """The row with an answer of `length` tokens that `eos` ends. The published code stores the block behind the call
    that gives the end."""
    row = copy.deepcopy(row)
    row["settings"]["eos_token_id"] = eos
    for key in ("tokens", "fill_step", "fill_conf"):
        row[key] = row[key][:length]
    windows, size = row["windows"], row["settings"]["block_length"]
    block = len(row["prompt"]) + (length - 1) // size * size
    stored = next(
        call for call, window in enumerate(windows, 1) if window[3] and window[0] + window[1] == block
    )
    last = max(stored, *row["fill_step"])
    end = next(call for call in range(last, len(windows)) if windows[call][3])
    row["windows"] = [*windows[:last], windows[end]]
    row["nfe"] = last
    return row


@pytest.mark.parametrize("kind", ["nld_spec", "nld_spec_lora", "nld_ar"])
def test_joint_drafting_gives_the_recorded_tokens(kind: str) -> None:
    for row in rows("spec", kind):
        model = GOLDEN / "models" / row["model"]
        adapter = str(model / row["lora"]) if row.get("lora") else None
        ends = recorded_settings(as_case(row))
        with LocalEngine.from_pretrained(model, max_model_len=256, draft_adapter=adapter) as engine:
            for num_branches in (1, 4):
                settings = SelfSpeculationSettings(
                    max_new_tokens=ends.max_new_tokens,
                    num_branches=num_branches,
                    ignore_eos=ends.ignore_eos,
                    stop_token_ids=ends.stop_token_ids,
                )
                (result,) = engine.generate([row["prompt"]], settings)
                assert result.token_ids[: len(row["tokens"])] == row["tokens"], (row["id"], num_branches)


@pytest.mark.parametrize(
    "row", [row for row in rows("generate", "nld_budget") if row["fill_step"][0]], ids=lambda row: row["id"]
)
def test_the_end_of_thinking_ends_the_answer(row: Row) -> None:
    """It is the id of EOS too, and is put in by the call that stores what is in front of its block."""
    end_token = row["settings"]["end_think_token_id"]
    at = row["fill_step"].index(0)
    assert row["tokens"][at] == end_token and end_token not in row["tokens"][:at]
    # Earlier calls of that block go on there until everything in front of the end is filled.
    assert verdict_of(cut(row, at + 1, end_token)).status == "passed"


def test_tokens_taken_behind_the_end_are_at_most_a_block() -> None:
    row = rows("spec", "nld_spec")[0]
    tokens = row["tokens"]
    at = max(at for at in range(len(tokens) - 1) if tokens[at] not in tokens[:at])
    row["settings"]["eos_token_id"] = tokens[at]
    calls = row["nfe"] = row["fill_step"][at]
    row["windows"] = row["windows"][:calls]
    row["accepted"] = row["accepted"][: sum(window[2] == "c" for window in row["windows"][1:])]
    for key in ("tokens", "fill_step", "fill_conf"):
        row[key] = row[key][: at + 1]
    assert verdict_of(row).status == "passed"
    row["accepted"][-1:] = [row["settings"]["block_length"] + 1]
    assert verdict_of(row).status == "differs"
