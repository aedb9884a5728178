"""The OpenAPI document and the server agree, whatever is sent."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from pydantic import BaseModel

from cluster.openai.response_model import ResponseModel
from cluster.serving.http.asgi_app import create_app
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.protocol.messages import GroupMessage
from lopa_ray.text.client_object import ClientObject
from support.fake_backend import MODEL, FakeBackend

pytestmark = pytest.mark.slow

KEY = "right"
BACKEND = FakeBackend()
schema = schemathesis.openapi.from_asgi(
    "/openapi.json", create_app(lambda: BACKEND, HttpSettings(api_keys=[KEY], admin_keys=[KEY]))
)
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
    if "model" in case.path_parameters:
        case.path_parameters["model"] = MODEL
    case.call_and_validate(headers={"Authorization": f"Bearer {KEY}"}, checks=CHECKS)


def test_every_model_in_the_document_has_a_name_of_its_own() -> None:
    """The document has one schema per name, so of two models one would be described by the other's."""

    def descendants(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for child in model.__subclasses__():
            yield child
            yield from descendants(child)

    modules: dict[str, set[str]] = {}
    for model in (*descendants(ClientObject), *descendants(ResponseModel), *descendants(GroupMessage)):
        modules.setdefault(model.__name__, set()).add(model.__module__)
    assert [(name, defined_in) for name, defined_in in modules.items() if len(defined_in) > 1] == []
