"""Recorded cases replay as recorded, and whatever is not as recorded is found and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_lab.conformance.cases import Case, UnsupportedCaseError, Verdict, read_cases
from lopa_lab.conformance.recorded import recorded_settings
from lopa_lab.conformance.replay import replay
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.engine.local import LocalEngine
from support.paths import GOLDEN
from support.recorded_cases import Row, rows

torch.set_num_threads(1)


def verdicts(path: Path, models: Path = GOLDEN / "models") -> list[Verdict]:
    return list(replay(read_cases(path), models, LocalEngine.from_config))


def shortest(name: str, algorithm: str = "lopa") -> Row:
    fitting = [row for row in rows(name) if row["settings"].get("algorithm") == algorithm]
    return min(fitting, key=lambda row: row["steps"] if row["steps"] > 4 else 99)


@pytest.fixture
def verdict_of(tmp_path: Path) -> Callable[[Row], Verdict]:
    def run(row: Row) -> Verdict:
        path = tmp_path / "cases.jsonl"
        path.write_text(json.dumps(row) + "\n")
        (verdict,) = verdicts(path)
        return verdict

    return run


# What differs is found, at the round where it differs first.


@pytest.mark.medium
@pytest.mark.parametrize(
    ("path", "change", "what", "at"),
    [
        ("tokens -1", lambda token: token ^ 1, "tokens", 0),
        ("steps", lambda steps: steps + 1, "steps", 0),
        ("trace", lambda trace: trace[:-1], "steps", 0),
        ("trace 2 f 0 1", lambda token: token ^ 1, "fills", 3),
        ("trace 2 q 0", lambda token: token ^ 1, "canvas", 3),
        ("trace 2 w", lambda winner: 0 if winner else 1, "winner", 3),
        ("trace 2 cf 0", lambda confidence: confidence + 2e-4, "confidences", 3),
        ("trace 2 cf 0", lambda confidence: float("nan"), "confidences", 3),
        ("trace 2 u", lambda updated: updated + 1, "cache round", 3),
        ("trace 2 br 0", lambda branch: [0, 0], "branches", 3),
        ("trace 2 ln 0", lambda length: length + 1, "branch lengths", 3),
        ("trace 2 nm 0", lambda masks: masks + 1, "branch masks", 3),
    ],
)
def test_first_difference_is_named(
    path: str, change: Callable[[Any], Any], what: str, at: int, verdict_of: Callable[[Row], Verdict]
) -> None:
    row: Any = shortest("lopa_cases")
    *parents, last = (int(key) if key.lstrip("-").isdigit() else key for key in path.split())
    changed = row
    for key in parents:
        changed = changed[key]
    changed[last] = change(changed[last])
    verdict = verdict_of(row)
    assert verdict.status == "differs"
    assert (verdict.differences[0].what, verdict.differences[0].round) == (what, at)
    assert verdict.as_dict()["first"]["what"] == what


def test_wrong_logits_differ(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    row = rows("forward_cases")[1]
    (tmp_path / "forward_cases.jsonl").write_text(json.dumps(row))
    tensors = load_file(GOLDEN / "forward_logits.safetensors")
    tensors[row["steps"][0]["logits"]][0, 0] += 1e-3
    save_file(tensors, tmp_path / "forward_logits.safetensors")
    (verdict,) = verdicts(tmp_path / "forward_cases.jsonl")
    assert (verdict.status, verdict.differences[0].what) == ("differs", "logits")


# Rows that cannot be replayed are one clear verdict each, and leave the others alone.


def test_bad_rows_are_errors_of_their_own(tmp_path: Path) -> None:
    good = shortest("lopa_cases")
    without_trace = {key: value for key, value in good.items() if key != "trace"}
    lines = [
        json.dumps(good).encode(),
        b"{broken",
        b'{"id": "\xff"}',
        b"[1, 2]",
        json.dumps({"id": "x", "model": "dream-tiny-2l"}).encode(),
        json.dumps(good | {"model": "absent"}).encode(),
        json.dumps(good | {"model": "../models"}).encode(),
        json.dumps(good | {"prompt": "text"}).encode(),
        json.dumps(without_trace).encode(),
        b"",
        json.dumps(good).encode(),
    ]
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\n".join(lines))
    by_line = {verdict.line: verdict for verdict in verdicts(path)}
    assert {line for line, verdict in by_line.items() if verdict.status == "passed"} == {1, 11}
    assert all(verdict.reason for line, verdict in by_line.items() if line not in (1, 11))
    assert {verdict.status for line, verdict in by_line.items() if line not in (1, 11)} == {"error"}
    assert "absent" in by_line[6].reason


@pytest.mark.medium
@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"temperature": 0.5}, "drawn tokens"),
        ({"surprise": 1}, "surprise"),
        ({"block_add_threshold": 1.5}, "block_add_threshold"),
        ({"algorithm": "other"}, "other"),
    ],
)
def test_unsupported_settings_are_said_to_be(
    change: Row, part: str, verdict_of: Callable[[Row], Verdict]
) -> None:
    row = shortest("lopa_cases")
    row["settings"] |= change
    verdict = verdict_of(row)
    assert verdict.status == "not supported"
    assert part in verdict.reason


def test_answer_of_no_block_takes_one_reported_step(verdict_of: Callable[[Row], Verdict]) -> None:
    row = shortest("lopa_cases")
    row["settings"]["max_new_tokens"] = row["settings"]["block_size"] - 1
    row.update(tokens=[], steps=1, trace=[])
    assert verdict_of(row).status == "passed"


def test_repeated_base_counts_once(verdict_of: Callable[[Row], Verdict]) -> None:
    row = shortest("lopa_cases")
    first = row["trace"][0]
    assert first["br"] == [None]
    for key in ("br", "ln", "nm", "cf"):
        first[key] = first[key] * 2
    assert verdict_of(row).status == "passed"


@pytest.mark.parametrize(
    ("change", "branches"),
    [
        ({"branching_factor": 1}, 1),
        ({"branching_factor": 4}, 5),
        ({"branching_factor": 4, "base_branch_competition": False}, 1),
    ],
)
def test_branch_modes_as_settings(change: Row, branches: int) -> None:
    row = shortest("lopa_cases")
    row["settings"] |= change
    settings = recorded_settings(Case(Path("x"), 1, "x", "lopa", row, "m", None))
    assert isinstance(settings, LopaSettings)
    assert settings.num_branches == branches


@pytest.mark.parametrize(
    "change", [{"branch_verification_mode": False}, {"verification_force_base_winner": True}]
)
def test_an_anchor_that_does_not_compete_is_not_supported(change: Row) -> None:
    row = shortest("lopa_cases")
    row["settings"] |= change
    with pytest.raises(UnsupportedCaseError, match="anchor"):
        recorded_settings(Case(Path("x"), 1, "x", "lopa", row, "m", None))


def test_unknown_strategy_means_probability() -> None:
    row = shortest("lora_cases", "d2f")
    row["settings"]["sampling_strategy"] = "margin_confidence"
    settings = recorded_settings(Case(Path("x"), 1, "x", "d2f", row, "m", None))
    assert isinstance(settings, D2FSettings)
    assert settings.ranking == "probability"
