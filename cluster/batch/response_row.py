"""The row of the output for a line of OpenAI's batch files."""

from __future__ import annotations

from typing import Any

from cluster.batch.lines import OpenAILine, response_id


def response_row(line: OpenAILine, status: int, body: Any) -> dict[str, Any]:
    """The row of the output for a line: the response that a server would have sent."""
    response = {"status_code": status, "request_id": f"batch-{line.line}", "body": body}
    return {
        "id": response_id(line.line),
        "custom_id": line.custom_id,
        "response": response,
        "error": None,
    }
