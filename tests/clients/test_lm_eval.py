"""lm-evaluation-harness: word problems as a task of its own, asked as chats."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lopa_lab.word_problems import Problem
from support.client_command import run_command
from support.paths import TASKS
from support.server_process import ServerProcess

# The latter comes with lm-eval[api].
MISSING = [name for name in ("lm_eval", "tenacity") if find_spec(name) is None]

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

ASKED = ("--tasks=word_problems", f"--include_path={TASKS}", "--apply_chat_template", "--log_samples")


@pytest.fixture
def folder(problems: list[Problem], tmp_path: Path) -> Path:
    """With the file that the task reads."""
    lines = [json.dumps(asdict(problem)) for problem in problems]
    (tmp_path / "word_problems.jsonl").write_text("\n".join(lines))
    return tmp_path


def ask_server(folder: Path, server: ServerProcess) -> None:
    url = f"{server.url}/v1/chat/completions"
    arguments = f"--model_args=model=demo,base_url={url},num_concurrent=2"
    model = ("--model=local-chat-completions", arguments)
    run_command(
        folder, "lm_eval", "run", *model, *ASKED, "--output_path=server", OPENAI_API_KEY=server.api_key
    )


def report(folder: Path) -> dict[str, Any]:
    (file,) = folder.rglob("results_*.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def answers(folder: Path) -> list[str]:
    (file,) = folder.rglob("samples_*.jsonl")
    samples = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return [sample["resps"][0][0] for sample in samples]


def test_all_word_problems_are_solved_and_as_the_harness_s_own_model_does(
    server: ServerProcess, problems: list[Problem], folder: Path
) -> None:
    ask_server(folder, server)
    results = report(folder / "server")["results"]["word_problems"]
    assert results["sample_len"] == len(problems)
    assert results["exact_match,number"] == 1.0
    run_command(
        folder,
        "cluster.cli",
        "eval",
        "run",
        "--model_args=config=demo,local=True",
        *ASKED,
        "--output_path=own",
    )
    assert answers(folder / "own") == answers(folder / "server")
    own = report(folder / "own")
    assert own["results"]["word_problems"]["exact_match,number"] == 1.0
    assert own["config"]["lopa_ray"]["tasks"]["word_problems"]["tpf"] > 1
