"""`lopa reproduce` on the model in the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("lm_eval")

from cluster.cli import app
from lopa_lab.paper.cell_run import CellRun
from lopa_lab.paper.measured_model import ProblemRecord
from lopa_lab.word_problems import extract_answer, held_out_problems

pytestmark = pytest.mark.slow

DEMO = ("--config", "demo", "--local", "--max-new-tokens", "64", "--stand-in", "word_problems")


def lopa(*arguments: str | Path, status: int = 0) -> str:
    """What the command prints, or its error."""
    result = CliRunner().invoke(app, ["reproduce", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return " ".join((result.stderr if status == 2 else result.stdout).split())


def written(folder: Path) -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


def record(**changes: Any) -> ProblemRecord:
    """10 tokens of 12 that 4 steps decided in 2 seconds, of which the first took 0.5."""
    values = {"text": "#### 4", "tokens": 10, "steps": 4, "seconds": 2.0, "first_step_seconds": 0.5}
    return ProblemRecord(**{**values, "fills": (3, 3, 3, 3), **changes})


def run_of(*records: ProblemRecord, branches: int = 4, score: float = 0.5) -> CellRun:
    asked = {"limit": None, "settings": {"decode": {"num_branches": branches}}}
    scores = {"exact_match,none": score, "exact_match_stderr,none": 0.25}
    return CellRun(asked=asked, made_with={}, scores=scores, metric="exact_match,none", records=records)


def test_a_figure_is_made_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    chosen = ("fig4", "--task", "gsm8k", "--row", "dream d2f", "--row", " 3 branches", "-o", tmp_path, *DEMO)
    printed = lopa(*chosen, "--limit", "2")
    assert "D2F-Dream 3 branches GSM8K" in printed and "2 problems are too few" in printed
    found = written(tmp_path)
    assert set(found) == {"d2f-dream-d2f-gsm8k", "d2f-dream-3-branches-gsm8k"}
    run = found["d2f-dream-3-branches-gsm8k"]
    assert run["asked"]["settings"]["decode"]["num_branches"] == 3
    assert run["asked"]["settings"]["decode"]["block_size"] == 32
    answers = [extract_answer(each["text"]) for each in run["records"]]
    solved = [
        answer == problem.result for answer, problem in zip(answers, held_out_problems(17, 2), strict=True)
    ]
    assert run["scores"][run["metric"]] == sum(solved) / 2
    assert all(len(each["fills"]) == each["steps"] and each["seconds"] > 0 for each in run["records"])
    text = (tmp_path / "comparison.md").read_text()
    assert "![D2F-Dream, GSM8K](d2f-dream-gsm8k.svg)" in text and (tmp_path / "d2f-dream-gsm8k.svg").exists()

    lopa(*chosen, "--limit", "2")
    assert written(tmp_path) == found  # times included: nothing was decoded again
    assert "limit: 2 then, 1 now" in lopa(*chosen, "--limit", "1", status=2)
    other = lopa("fig4", "--task", "mbpp", "--row", " 2 branches", "-o", tmp_path, "--limit", "1", *DEMO)
    assert "D2F-Dream 3 branches GSM8K" in other and len(written(tmp_path)) == 3


def test_cells_that_are_not_run_have_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    qwen = ("--row", "Qwen", "--row", "Base")
    printed = lopa("table7", "--task", "gsm8k", *qwen, "-o", tmp_path, "--limit", "1", *DEMO)
    assert "Qwen3-8B (SGLang), GSM8K: An autoregressive model" in printed and "64.9" in printed
    local = ("--config", "demo", "--local", "--row", "D2F-Dream d2f", "-o", tmp_path / "code")
    printed = lopa("table1", "--task", "mbpp", *local, status=1)
    assert "set HF_ALLOW_CODE_EVAL=1, in a container" in printed
    assert "cannot load its data" in lopa("table1", "--task", "gsm8k", *local, status=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "got 'table9'; allowed: table1, table2"),
        (["table7", "--row", "no such row"], "allowed: D2F-Dream-7B-Base (CUDA), D2F-Dream-7B-Instruct"),
        (["table7", "--task", "math"], "allowed: mbpp, gsm8k"),
        (["table1", "--stand-in", "gsm9k"], "allowed: gsm8k, math"),
        (["fig4", "--set", "decode.num_branches=2"], "decode.num_branches: cells of fig4 differ in it"),
        (["table1", "--set", "model.max_num_seqs=2"], "--concurrency sets how many"),
    ],
)
def test_what_cannot_be_run_is_said(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert words in lopa(*arguments, "--config", "demo", "--local", "-o", tmp_path, status=2)


def test_together_in_flight_there_are_no_times(tmp_path: Path) -> None:
    chosen = ("fig5", "--task", "gsm8k", "--row", "2 branches", "--limit", "2", *DEMO)
    lopa(*chosen, "-o", tmp_path / "alone")
    lopa(*chosen, "-o", tmp_path / "together", "--concurrency", "2")
    ((alone,), (together,)) = (written(tmp_path / name).values() for name in ("alone", "together"))
    assert {each["text"] for each in alone["records"]} == {each["text"] for each in together["records"]}
    assert all(each["seconds"] is None for each in together["records"])


def test_figures_are_counted_as_the_authors_count() -> None:
    slow = record(seconds=4.0, first_step_seconds=1.0)
    figures = run_of(record(), slow, record(steps=1, fills=(12,), first_step_seconds=2.0)).figures
    assert figures["tpf"] == 36 / 9 and figures["tpf_to_eos"] == 30 / 9 and figures["score"] == 50.0
    assert (figures["max_tps"], figures["avg_tps"], figures["top10_tps"]) == (8.0, 6.0, 6.0)
    assert figures["latency_s"] == pytest.approx(8 / 3)
    untimed = run_of(record(seconds=None, first_step_seconds=None)).figures
    assert untimed["avg_tps"] is untimed["latency_s"] is None
