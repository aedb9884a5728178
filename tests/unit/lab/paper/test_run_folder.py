"""What a run keeps, and how it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.runs.run_folder import RunFolder
from lopa_ray.errors import SettingsError

IDENTITY = {
    "task": "gsm8k",
    "settings": {"decode": {"num_branches": 4, "top_p": None}},
    "versions": {"a": "1"},
}


def record(name: str, **changes: object) -> ProblemRecord:
    values = {
        "problem_id": name,
        "text": "4\n#### 4",
        "finish_reason": "stop",
        "prompt_tokens": 9,
        "truncated_prompt": False,
        "tokens": 6,
        "canvas_tokens": 8,
        "steps": 2,
        "forwards": 5,
        "seconds": 0.5,
        "first_step_seconds": 0.2,
        "fills": (5, 3),
    }
    return ProblemRecord.model_validate({**values, **changes})


def test_a_run_goes_on_with_its_records(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", IDENTITY)
    first, second = record("a"), record("b")
    folder.append(first)
    folder.append(second)
    again = RunFolder(tmp_path / "run", IDENTITY)
    assert list(again.records.values()) == [first, second]
    graded = second.model_copy(update={"scores": {"exact_match": 1.0}})
    again.append(graded)
    assert list(RunFolder(tmp_path / "run", IDENTITY).records.values()) == [first, graded]
    again.compact()
    assert list(RunFolder(tmp_path / "run", IDENTITY).records.values()) == [first, graded]
    assert (tmp_path / "run" / "records.jsonl").read_bytes().count(b"\n") == 2
    assert not list((tmp_path / "run").glob("*.part"))
    assert again.started == folder.started


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, IDENTITY)
    folder.append(record("a"))
    path = tmp_path / "records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + record("b").model_dump_json().encode()[:40])
    again = RunFolder(tmp_path, IDENTITY)
    assert list(again.records) == ["a"]
    again.append(record("c"))
    assert list(RunFolder(tmp_path, IDENTITY).records) == ["a", "c"]


def test_another_run_is_not_mixed_in(tmp_path: Path) -> None:
    RunFolder(tmp_path, IDENTITY)
    other = {**IDENTITY, "settings": {"decode": {"num_branches": 8, "top_p": None}}}
    with pytest.raises(SettingsError, match=r"settings\.decode\.num_branches: 4 then, 8 now"):
        RunFolder(tmp_path, other)
    with pytest.raises(SettingsError, match=r'versions\.a: "1" then, null now'):
        RunFolder(tmp_path, {**IDENTITY, "versions": {}})


@pytest.mark.parametrize(("name", "text"), [("run.json", "{"), ("records.jsonl", '{"problem_id": 1}\n')])
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    RunFolder(tmp_path, IDENTITY)
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=name):
        RunFolder(tmp_path, IDENTITY)


def test_records_without_a_run_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(record("a").model_dump_json() + "\n")
    with pytest.raises(SettingsError, match=r"without run\.json"):
        RunFolder(tmp_path, IDENTITY)
