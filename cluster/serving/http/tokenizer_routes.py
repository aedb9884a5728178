"""/tokenize and /detokenize, as vLLM has them: text to tokens and back, without decoding."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request

from cluster.choices.messages import TokenizeResponse
from cluster.openai.errors import api_error
from cluster.openai.tokenization import DetokenizeRequest, DetokenizeResponse, TokenizeRequest
from cluster.serving.http.access_log import log_record_of
from cluster.serving.http.body import read_json_object
from cluster.serving.http.dependencies import choose_model
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.http.openapi import error_responses, request_body
from cluster.serving.protocol.backend import Backend
from cluster.serving.protocol.group import Group
from lopa_ray.errors import PromptError

_ERROR_STATUSES = (400, 404, 413, 415, 429, 503)


def tokenizer_routes(backend: Callable[[], Backend], settings: HttpSettings) -> APIRouter:
    router = APIRouter(responses=error_responses(_ERROR_STATUSES))

    @router.post(
        "/tokenize", summary="Turn a text or a chat into tokens", openapi_extra=request_body(TokenizeRequest)
    )
    async def tokenize(http_request: Request) -> TokenizeResponse:
        """A chat has the tokens that /v1/chat/completions decodes, a text the tokens of /v1/completions."""
        request = TokenizeRequest.parse(await read_json_object(http_request, settings.max_body_bytes))
        model = log_record_of(http_request.scope).model = choose_model(request.model, backend().models)
        try:
            tokenized = await backend().ask(model, Group.tokenize, request.as_prompt())
        except PromptError as error:
            raise api_error(error, {"prompt": request.prompt_field}) from None
        return tokenized if request.return_token_strs else tokenized.model_copy(update={"token_strs": None})

    @router.post(
        "/detokenize", summary="Turn tokens into text", openapi_extra=request_body(DetokenizeRequest)
    )
    async def detokenize(http_request: Request) -> DetokenizeResponse:
        """Special tokens show in the text, under their names."""
        request = DetokenizeRequest.parse(await read_json_object(http_request, settings.max_body_bytes))
        model = log_record_of(http_request.scope).model = choose_model(request.model, backend().models)
        try:
            return DetokenizeResponse(prompt=await backend().ask(model, Group.detokenize, request.tokens))
        except PromptError as error:
            raise api_error(error, {"prompt": "tokens"}) from None

    return router
