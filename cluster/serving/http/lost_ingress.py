"""In Ray Serve's proxies: responses in OpenAI's shape where the replica of the ingress is lost. Serve's own proxy
leaves such a response as it is: cut, or a status 500 in plain text."""

from __future__ import annotations

from starlette.types import Message, Receive, Scope, Send

from cluster.openai.errors import api_error
from cluster.openai.events import ServerSentEvent
from cluster.serving.http.middleware import HttpMiddleware
from cluster.serving.http.responder import send_json
from lopa_ray.errors import ClusterError


class LostIngressMiddleware(HttpMiddleware):
    """Ends responses that the application behind it leaves without a start or an end."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = ended = streams = False

        async def send_on(message: Message) -> None:
            nonlocal started, ended, streams
            if message["type"] == "http.response.start":
                started, streams = True, _is_stream(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        await self._app(scope, receive, send_on)
        # A client that has disconnected gets none of this.
        lost = ClusterError("the process that handled this request was lost and is being replaced")
        error = api_error(lost)
        if not started:
            await send_json(send, error.status, error.body, error.headers)
        elif streams and not ended:
            events = ServerSentEvent(error.body).encode() + ServerSentEvent("[DONE]").encode()
            await send({"type": "http.response.body", "body": events, "more_body": False})


def _is_stream(start: Message) -> bool:
    return any(
        bytes(name).lower() == b"content-type" and bytes(value).startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )
