"""`ServerPartner`: a server with OpenAI's API answers in `lopa chat`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from cluster.cli.chat_partner import Message, note_of
from cluster.cli.server_request import open_response
from cluster.command_line.options import check_url
from lopa_ray.errors import ClusterError

READ_TIMEOUT_S = 600.0  # how long a server may send nothing of an answer
KIND = "an OpenAI-compatible server"


class ServerPartner:
    def __init__(
        self, url: str, api_key: str | None, model: str | None, parameters: Mapping[str, Any]
    ) -> None:
        """`url`: the server's address, or its API's (`http://host:port/v1`). `model`: None for the first model that it
        lists. `parameters`: further parameters of each request. Raises SettingsError if `url` is not an address."""
        check_url(url, with_path=True)
        self.note = ""
        self._api = f"{url.rstrip('/')}/v1" if urlsplit(url).path in ("", "/") else url
        self._api_key, self._model, self._parameters = api_key, model, parameters

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        self._model = self._model or self._first_model()
        self.note = ""
        body = {"model": self._model, "messages": list(messages), "stream": True, **self._parameters}
        with self._open("/chat/completions", body) as response:
            for event in _events(response):
                if "error" in event:
                    raise ClusterError(f"{self._api} ended the answer: {_message_of(event['error'])}")
                for choice in event.get("choices") or ():
                    text = (choice.get("delta") or {}).get("content")
                    if text:
                        yield text
                    if choice.get("finish_reason"):
                        cost = choice.get("lopa") or {}
                        self.note = note_of(
                            cost.get("tokens"), cost.get("steps"), cost.get("tpf"), choice["finish_reason"]
                        )

    def _first_model(self) -> str:
        with self._open("/models", None) as response:
            listed = json.load(response)
            if not isinstance(listed, dict) or not listed.get("data"):
                raise ValueError("it lists no models")
            return str(listed["data"][0]["id"])

    def _open(self, path: str, body: Mapping[str, Any] | None) -> Any:
        return open_response(
            self._api, path, api_key=self._api_key, body=body, timeout_s=READ_TIMEOUT_S, kind=KIND
        )


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events. Raises ValueError for anything else."""
    for line in response:
        name, _, data = line.decode("utf-8").strip().partition(":")
        if name != "data":
            continue
        if data.strip() == "[DONE]":
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event is {data.strip()[:80]!r}")
        yield event
    raise ValueError("the stream ended before [DONE]")


def _message_of(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
