"""The OpenAPI document and the server agree, whatever is sent."""

from __future__ import annotations

import hypothesis
import schemathesis

from cluster.serving.http.asgi_app import create_app
from cluster.serving.settings import HttpSettings
from support.fake_backend import MODEL, FakeBackend

BACKEND = FakeBackend()
schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(lambda: BACKEND, HttpSettings()))
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]


@schema.parametrize()
@hypothesis.settings(
    max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_contract(case: schemathesis.Case) -> None:
    # Hardly any text is the name of a model.
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL
    case.call_and_validate(checks=CHECKS)
