"""The routes under /admin, for those who run the server. No `annotations` from the future, as in `v1.py`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cluster.serving.http.body import parse_object, read_body
from cluster.serving.http.dependencies import check_model, key_check
from cluster.serving.http.openapi import body_of, problems
from cluster.serving.http.scale_request import ScaleRequest
from cluster.serving.messages import Backend, GroupWorkers
from cluster.serving.openai.errors import ApiError
from cluster.serving.openai.response_models import ModelWorkers, WorkersOfGroup
from cluster.serving.settings import HttpSettings

if TYPE_CHECKING:
    from fastapi import APIRouter


def admin_routes(backend: Callable[[], Backend], settings: HttpSettings) -> "APIRouter":
    """Looking at workers, and changing their number. Without API keys all of it is refused."""
    from fastapi import APIRouter, Request, Security

    async def closed() -> None:
        raise ApiError(
            403,
            "this server has no API keys, so everybody could change it; start it with some (--api-keys FILE)",
            "admin_needs_keys",
        )

    guard = key_check(settings.api_keys) if settings.api_keys else closed
    router = APIRouter(
        prefix="/admin",
        dependencies=[Security(guard)],
        responses=problems([401] if settings.api_keys else [403]),
    )

    def answer(model: str, groups: Sequence[GroupWorkers]) -> ModelWorkers:
        found = [WorkersOfGroup(**asdict(group)) for group in groups]
        return ModelWorkers(object="model.workers", model=model, groups=found)

    @router.get(
        "/models/{model:path}/workers",
        summary="The workers of a model's groups",
        responses=problems([404, 503]),
    )
    async def workers(model: str) -> ModelWorkers:
        check_model(model, backend().models)
        return answer(model, await backend().workers(model))

    @router.post(
        "/models/{model:path}/workers",
        summary="Change how many workers a model's groups have, while they decode",
        responses=problems([400, 404, 413, 503]),
        openapi_extra=body_of(ScaleRequest),
    )
    async def resize(model: str, request: Request) -> ModelWorkers:
        """Workers change how fast a step is, never an answer. New ones join when they have a place and have
        loaded the model; the answer says how many are on their way."""
        check_model(model, backend().models)
        length = request.headers.get("content-length")
        body = parse_object(await read_body(request.receive, length, settings.max_body_bytes))
        asked = ScaleRequest.read(body)
        return answer(model, await backend().resize(model, asked.num_workers))

    return router
