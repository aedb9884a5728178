"""lm-evaluation-harness: word problems as a task of its own, asked as chats."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from lopa_ray.presets.word_problems import Problem
from support.client_command import run_command
from support.server_process import ServerProcess

# The latter comes with lm-eval[api].
MISSING = [name for name in ("lm_eval", "tenacity") if find_spec(name) is None]

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

TASKS = Path(__file__).parent / "tasks"


def test_all_word_problems_are_solved(server: ServerProcess, problems: list[Problem], tmp_path: Path) -> None:
    lines = [json.dumps(asdict(problem)) for problem in problems]
    (tmp_path / "word_problems.jsonl").write_text("\n".join(lines))
    run_command(
        tmp_path,
        "lm_eval",
        "run",
        "--model=local-chat-completions",
        f"--model_args=model=demo,base_url={server.url}/v1/chat/completions,num_concurrent=2",
        "--tasks=word_problems",
        f"--include_path={TASKS}",
        "--apply_chat_template",
        "--output_path=results",
        OPENAI_API_KEY=server.api_key,
    )
    (report,) = (tmp_path / "results").rglob("results_*.json")
    results = json.loads(report.read_text())["results"]["word_problems"]
    assert results["sample_len"] == len(problems)
    assert results["exact_match,number"] == 1.0
