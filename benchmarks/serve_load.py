"""Throughput and latency of a running server against concurrency, with either branch budget.

    lopa serve &
    python benchmarks/serve_load.py --output load.md

Each point sends the same word problems, a number of them at a time; a client waits for its answer before
it sends the next one. `fixed` pins 4 branches per request; `load` lets the server share its
branches among the requests in flight, at most 8 for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp

from lopa_ray.presets.word_problems import Problem, held_out_problems, is_correct
from tables import markdown_table

BUDGETS = {
    "fixed": {"num_branches": 4, "branch_budget": "fixed"},
    "load": {"num_branches": 8, "branch_budget": "load"},
}


async def send_request(
    session: aiohttp.ClientSession, model: str, problem: Problem, lopa: dict[str, Any]
) -> dict[str, Any]:
    """One request: seconds, tokens, steps, and whether the answer is correct. Raises for any status but 200."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": problem.question}],
        "max_tokens": 64,
        "lopa": lopa,
    }
    began = time.perf_counter()
    async with session.post("/v1/chat/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {json.dumps(answer)[:300]}")
    stats = answer["lopa"]
    return {
        "seconds": time.perf_counter() - began,
        "tokens": answer["usage"]["completion_tokens"],
        "steps": stats["steps"],
        "forwards": stats["forwards"],
        "correct": is_correct(problem, answer["choices"][0]["message"]["content"]),
    }


async def measure(url: str, model: str, budget: str, concurrency: int, requests: int) -> dict[str, Any]:
    """One point of the curve."""
    problems = iter(held_out_problems(4, requests))
    responses: list[dict[str, Any]] = []

    async def client(session: aiohttp.ClientSession) -> None:
        responses.extend(
            [await send_request(session, model, problem, BUDGETS[budget]) for problem in problems]
        )

    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(concurrency)))
        seconds = time.perf_counter() - began
    latencies = sorted(response["seconds"] for response in responses)
    tokens, steps = (sum(response[key] for response in responses) for key in ("tokens", "steps"))
    return {
        "budget": budget,
        "concurrency": concurrency,
        "requests/s": len(responses) / seconds,
        "tokens/s": tokens / seconds,
        "p50 ms": 1000 * statistics.median(latencies),
        "p99 ms": 1000 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        "TPF": tokens / steps,
        "branches/step": sum(response["forwards"] for response in responses) / steps,
        "solved %": 100 * sum(response["correct"] for response in responses) / len(responses),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    shown = [
        [f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows
    ]
    return markdown_table([list(rows[0]), *shown]) + "\n"


def main() -> None:
    """Parse the command line, measure every point, write the table."""
    parser = argparse.ArgumentParser(description="Load a running server.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--requests", type=int, default=96, help="per point")
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    arguments = parser.parse_args()
    rows = []
    asyncio.run(measure(arguments.url, arguments.model, "fixed", 4, 16))  # the first requests warm things up
    for concurrency in arguments.concurrency:
        for budget in BUDGETS:
            row = asyncio.run(
                measure(arguments.url, arguments.model, budget, concurrency, arguments.requests)
            )
            rows.append(row)
            print(json.dumps(row), flush=True)
    if arguments.output is not None:
        arguments.output.write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
