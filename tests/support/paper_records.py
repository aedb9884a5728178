"""Records and descriptions of runs of the paper's benchmarks, for tests of what is made from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.runs.run_info import RunInfo
from lopa_lab.records.machine import Machine


def make_record(index: int = 0, **changes: Any) -> ProblemRecord:
    """A solved problem: 10 tokens in 4 steps and 2 seconds, of which the first step took 0.5."""
    values = {
        "problem_id": f"problem/{index}",
        "text": "#### 4",
        "finish_reason": "stop",
        "prompt_tokens": 20,
        "truncated_prompt": False,
        "tokens": 10,
        "canvas_tokens": 12,
        "steps": 4,
        "forwards": 16,
        "seconds": 2.0,
        "first_step_seconds": 0.5,
        "fills": (3, 3, 3, 3),
        "scores": {"exact_match": 1.0},
    }
    return ProblemRecord.model_validate({**values, **changes})


def make_run(**changes: Any) -> RunInfo:
    """A whole run of three problems on a machine that is always the same."""
    values = {
        "task": "gsm8k",
        "title": "GSM8K",
        "shots": 4,
        "metric": "exact_match",
        "config_name": "paper/d2f-dream-gsm8k",
        "settings": {"model": {"path": "a/model", "lora": None}, "decode": {"num_branches": 4}},
        "model": "a/model@0123",
        "chat": False,
        "problems": 3,
        "versions": {"lopa-ray": "1.2.3", "data": "sha256 of it"},
        "machine": Machine(
            cpu="A CPU",
            cores=2,
            memory_bytes=2**33,
            accelerators=("One GPU", "Another GPU"),
            os="Linux",
            python="3.11.0",
            packages={"torch": "2.9.0"},
        ),
        "command": ("lopa", "eval", "paper", "gsm8k", "--output", "my results"),
        "started": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "concurrency": 1,
    }
    return RunInfo.model_validate({**values, **changes})
