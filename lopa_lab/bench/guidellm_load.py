"""The same load by GuideLLM, as a process of its own: its package may live in another environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from lopa_lab.bench.http_load import AnsweredRequest, Target
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.errors import ClusterError, SettingsError

TIMEOUT_S = 1800.0
"""Seconds until the end of one load."""

PROMPT_TOKENS = 48
"""Length of its synthetic prompts."""


def guidellm_closed_loop(
    executable: str, target: Target, requests: int, clients: int
) -> list[AnsweredRequest]:
    """Requests of synthetic text from so many clients, by the command `executable`.

    The key, if the target has one, is part of the command line, which other users of the machine can read.

    Raises SettingsError if there is no such command, ClusterError if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="lopa-bench-") as folder:
        report = Path(folder) / "report.json"
        command = [
            executable,
            "run",
            f"--backend=kind=openai_http,target={target.url},model={target.model}"
            + (f",api_key={target.api_key}" if target.api_key else ""),
            f"--profile=kind=concurrent,streams={clients}",
            f"--constraint=kind=max_requests,count={requests}",
            f"--tokenizer=kind=huggingface_auto,model={DEMO_MODEL}",
            f"--data=kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={target.max_tokens}",
            "--output=kind=json,path=report.json",
            "--disable-console",
        ]
        # What it caches goes into the folder too, and it has nothing to ask the Hub for.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(Path(folder) / "hugging-face")}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"guidellm did not end within {TIMEOUT_S:g} s") from None
        except OSError as error:
            raise SettingsError(
                f"--guidellm: cannot run {executable} ({error.strerror}); install it: pip install 'lopa-ray[clients]', "
                "best in an environment of its own, or name its command"
            ) from None
        if done.returncode != 0 or not report.exists():
            raise ClusterError(f"guidellm failed: {(done.stderr or done.stdout).strip()[-500:]}")
        benchmarks = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    if len(benchmarks) != 1:
        raise ClusterError(f"guidellm reports {len(benchmarks)} benchmarks in place of one")
    (benchmark,) = benchmarks
    answered = [
        AnsweredRequest(
            request["request_start_time"],
            request["request_end_time"],
            request["time_to_first_token_ms"] and request["time_to_first_token_ms"] / 1000,
            request["output_tokens"],
        )
        for request in benchmark["requests"]["successful"]
    ]
    failures = len(benchmark["requests"]["errored"]) + len(benchmark["requests"]["incomplete"])
    end = max((request.ended for request in answered), default=0.0)
    lost = "guidellm counts it as failed or incomplete"
    answered += [AnsweredRequest(end, end, None, 0, error=lost)] * failures
    if not answered:
        raise ClusterError("guidellm reports no requests")
    return answered
