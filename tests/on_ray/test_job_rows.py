"""The rows that a group of a job makes of a file's lines: those of the same lines decoded in one process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import parse_record
from cluster.jobs.group import JobGroup
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine

HI = [{"role": "user", "content": "Tom has 3 boxes with 4 pens each."}]
NUMBER = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"]}
COUNT = {"type": "function", "name": "count", "parameters": NUMBER}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI, "n": 2, "temperature": 1.0, "stop": ["a", "e"]}),
    ("/v1/responses", {"input": HI, "tools": [COUNT], "tool_choice": "required"}),
    ("/v1/completions", {"prompt": ["one", "two"], "echo": True}),
    ("/v1/completions", {"prompt": "one", "max_tokens": 0}),
    ("/v1/completions", {"prompt": 3}),
]
IDS = ("id", "call_id")
TIMES = ("created", "created_at", "completed_at", "seconds", "queued_seconds", "phases_seconds", "tps")


def comparable(row: Any) -> Any:
    """Without ids and times."""

    def kept(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in fields.items() if key not in IDS + TIMES}

    return json.loads(json.dumps(row), object_hook=kept)


@pytest.mark.nightly
def test_a_group_answers_as_one_process_does() -> None:
    config = Config.load(
        "demo", {"group": {"num_workers": 2, "num_cpus": 0.5}, "decode": {"max_new_tokens": 16}}
    )
    records: list[Any] = [
        {"custom_id": f"mine-{at}", "url": url, "body": {"model": "any", **body}}
        for at, (url, body) in enumerate(BODIES)
    ]
    lines = [parse_record(number, record) for number, record in enumerate([*records, "own"], 1)]
    expected = [row.as_dict() for row in decode_lines(LocalEngine.from_config(config), lines, raw=False)]
    group = JobGroup(config.model_dump(exclude_unset=True), raw=False)
    group.start()
    result = group.decode(lines)
    assert [comparable(json.loads(row)) for row in result.rows] == [comparable(row) for row in expected]
    statuses = [row["response"]["status_code"] for row in expected[:-1]]
    assert statuses == [200, 200, 200, 200, 400] and [failure.line for failure in result.failures] == [5]
