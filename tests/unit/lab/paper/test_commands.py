"""`lopa eval paper` and `lopa reproduce` on the model in the package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("lm_eval")

from cluster.cli import app
from lopa_lab.paper.tables.cells import cells
from lopa_lab.paper.tables.run_cells import Selection
from lopa_lab.word_problems import extract_answer, held_out_problems
from support.paths import DATA, ROOT

pytestmark = pytest.mark.slow


HUMANEVAL = DATA / "code" / "humaneval.jsonl"
SHORT = ("--local", "--max-new-tokens", "64")


def lopa(*arguments: str | Path) -> str:
    """What the command prints. It must succeed."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def lopa_error(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 2, result.output
    return result.stderr


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper") / "run"
    printed = lopa("eval", "paper", "word_problems", *SHORT, "--limit", "3", "-o", folder)
    assert "exact_match" in printed and "This is not the benchmark" in printed
    return folder


def test_a_run_is_reported_with_all_its_figures(run: Path) -> None:
    found, kept = report(run), records(run)
    solved = [
        extract_answer(each["text"]) == problem.result
        for each, problem in zip(kept, held_out_problems(17, 3), strict=True)
    ]
    assert found["scores"]["exact_match"]["value"] == pytest.approx(100 * sum(solved) / 3)
    assert [each["scores"]["exact_match"] for each in kept] == [float(each) for each in solved]
    figures = found["figures"]
    assert figures["tpf"]["value"] == pytest.approx(
        sum(r["tokens"] for r in kept) / sum(r["steps"] for r in kept)
    )
    assert figures["max_tps"]["value"] == pytest.approx(max(r["tokens"] / r["seconds"] for r in kept))
    for name in ("tpf", "avg_tps", "max_tps", "top10_tps", "latency_s", "steps", "published_tpf"):
        assert figures[name]["low"] <= figures[name]["value"] <= figures[name]["high"], name
    assert {"lopa-ray", "lm_eval", "task word_problems"} <= set(found["run"]["versions"])
    text = (run / "report.md").read_text()
    assert text.count("](plots/") == 4 == len([*(run / "plots").iterdir()])
    assert all(f"### {each['problem_id']}\n\n```\n{each['text']}\n```" in text for each in kept)


@pytest.mark.long
def test_a_run_goes_on_with_what_it_has(run: Path) -> None:
    before = records(run)
    lopa("eval", "paper", "word_problems", *SHORT, "--limit", "4", "-o", run)
    assert records(run)[:3] == before and len(records(run)) == 4  # times included: nothing was decoded again
    lopa("eval", "paper", "word_problems", *SHORT, "--limit", "2", "-o", run)
    assert report(run)["problems"]["decoded"] == 2 and len(records(run)) == 4
    wrong = lopa_error("eval", "paper", "word_problems", *SHORT, "-b", "2", "--limit", "3", "-o", run)
    assert "settings.decode.num_branches: 4 then, 2 now" in wrong


def test_together_in_flight_there_are_the_same_answers_and_no_speeds(run: Path, tmp_path: Path) -> None:
    lopa("eval", "paper", "word_problems", *SHORT, "--limit", "3", "--concurrency", "3", "-o", tmp_path)
    alone = {each["problem_id"]: each["text"] for each in records(run)}
    assert all(each["text"] == alone[each["problem_id"]] for each in records(tmp_path))
    figures = report(tmp_path)["figures"]
    assert figures["avg_tps"]["value"] is None and figures["tpf"]["value"] > 1


def test_programs_are_executed_only_if_that_is_allowed(tmp_path: Path) -> None:
    command = ("eval", "paper", "humaneval", *SHORT, "--data", HUMANEVAL, "--limit", "1", "-o", tmp_path)
    printed = lopa(*command)
    assert "--allow-code-execution" in printed
    (before,) = records(tmp_path)
    assert before["scores"] is None and report(tmp_path)["scores"]["pass@1"]["value"] is None
    lopa(*command, "--allow-code-execution")
    (after,) = records(tmp_path)
    assert after == {**before, "scores": {"pass@1": 0.0}}
    assert report(tmp_path)["scores"]["pass@1"]["value"] == 0


@pytest.mark.long
def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    command = ["eval", "paper", "word_problems", *SHORT, "--limit", "16", "-o", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen([sys.executable, "-m", "cluster.cli", *command], env=environment)
    kept = tmp_path / "records.jsonl"
    deadline = time.monotonic() + 100
    while not (kept.exists() and kept.read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole = kept.read_bytes().split(b"\n")[:-1]
    assert 2 <= len(whole) < 16
    lopa(*command)
    again = records(tmp_path)
    assert len({each["problem_id"] for each in again}) == len(again) == 16
    for line, record in zip(whole, again, strict=False):
        assert {**json.loads(line), "scores": None} == {**record, "scores": None}


def test_what_cannot_be_run_is_said() -> None:
    assert "allowed: gsm8k, math" in lopa_error("eval", "paper", "gsm9k", "--local")
    assert "no file missing.jsonl" in lopa_error(
        "eval", "paper", "gsm8k", "--local", "--data", "missing.jsonl"
    )
    assert "table9" in lopa_error("reproduce", "table9", "--local")
    assert "TASK=FILE" in lopa_error("reproduce", "table1", "--local", "--data", "gsm8k")


@pytest.mark.long
def test_a_figure_is_made_on_the_model_at_hand(tmp_path: Path) -> None:
    demo = ("--config", "demo", "--stand-in", "word_problems", "--limit", "2", "-o", tmp_path, *SHORT)
    printed = lopa(
        "reproduce", "fig4", "--task", "gsm8k", "--row", "dream d2f", "--row", " 3 branches", *demo
    )
    assert "Not run: not among the rows that were asked for" in printed
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert len(found["rows"]) == 84
    run_rows = [row for row in found["rows"] if row["not_run"] is None]
    assert [row["labels"]["row"] for row in run_rows if row["labels"]["task"] == "GSM8K"] == [
        "D2F-Dream D2F",
        "D2F-Dream 3 branches",
    ]
    assert all(row["measured"]["tpf"]["value"] > 1 for row in run_rows)
    text = (tmp_path / "comparison.md").read_text()
    assert "![D2F-Dream, GSM8K](plots/d2f-dream-gsm8k.svg)" in text
    assert "score without lookahead" in (tmp_path / "plots/d2f-dream-gsm8k.svg").read_text()
    folder = tmp_path / "d2f-dream-3-branches-gsm8k"
    assert f"]({folder.name}/report.md) |" in text and (folder / "report.md").exists()
    assert report(folder)["run"]["settings"]["decode"]["num_branches"] == 3
    assert report(folder)["run"]["settings"]["decode"]["block_size"] == 32
    assert report(folder)["run"]["model"] == "demo"


def test_a_table_marks_what_was_not_run(tmp_path: Path) -> None:
    demo = ("--config", "demo", "--stand-in", "word_problems", "--limit", "1", "-o", tmp_path, *SHORT)
    lopa("reproduce", "table7", "--row", "Base", "--row", "Qwen", *demo)
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    base, qwen = rows[0], next(row for row in rows if "Qwen" in row["labels"]["row"])
    assert base["not_run"] is None and base["published"]["avg_tps"] == 327.69
    assert "autoregressive" in qwen["not_run"] and qwen["published"]["score"] == 78.92


def test_rows_are_chosen_by_name_or_part_of_it(tmp_path: Path) -> None:
    wrong = lopa_error("reproduce", "table7", "--row", "no such row", "-o", tmp_path)
    assert "allowed: D2F-Dream-7B-Base (CUDA), D2F-Dream-7B-Instruct (CUDA), Qwen3-8B (SGLang)" in wrong
    assert "allowed: mbpp, gsm8k" in lopa_error("reproduce", "table7", "--task", "math", "-o", tmp_path)
    found = cells("table1")
    for row, count in (("dream LOPA", 4), ("lopa", 8), ("D2F-Dream", 8)):
        reasons = Selection(rows=(row,)).reasons_to_skip(found)
        assert reasons.count("") == count
