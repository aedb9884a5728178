"""GuideLLM: a benchmark of synthetic prompts, with usage in every chunk."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from lopa_ray.config.model_settings import DEMO_MODEL
from support.client_command import run_command
from support.server_process import ServerProcess

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("guidellm") is None, reason="guidellm is not installed"),
]

REQUESTS, OUTPUT_TOKENS = 6, 24


def test_a_benchmark(server: ServerProcess, tmp_path: Path) -> None:
    run_command(
        tmp_path,
        "guidellm",
        "run",
        f"--backend=kind=openai_http,target={server.url},api_key={server.api_key}",
        "--profile=kind=concurrent,streams=2",
        f"--constraint=kind=max_requests,count={REQUESTS}",
        f"--tokenizer=kind=huggingface_auto,model={DEMO_MODEL}",
        f"--data=kind=synthetic_text,prompt_tokens=48,output_tokens={OUTPUT_TOKENS}",
        "--output=kind=json,path=report.json",
        "--disable-console",
    )
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert [len(requests[state]) for state in ("successful", "errored", "incomplete")] == [REQUESTS, 0, 0]
    for request in requests["successful"]:
        assert json.loads(request["request_args"])["body"]["stream_options"]["continuous_usage_stats"] is True
        assert request["output_metrics"]["text_tokens"] == OUTPUT_TOKENS
        assert request["input_metrics"]["text_tokens"] > 0
        assert request["output"]
