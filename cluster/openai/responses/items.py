"""The items of a response as they come: reasoning, a message, calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from cluster.choices.messages import TextDelta
from cluster.openai.completion_objects import ChatLogprob
from cluster.openai.responses.objects import (
    ItemStatus,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from cluster.openai.tools import new_call_id

Kind: TypeAlias = Literal["reasoning", "message", "function_call"]
EventFields: TypeAlias = tuple[str, dict[str, Any]]  # all but the sequence number
_ID_PREFIX: dict[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}

_TEXT: dict[Kind, str] = {
    "reasoning": "reasoning_text",
    "message": "output_text",
    "function_call": "function_call_arguments",
}
"""The middle of the types of events about an item's text."""


class _OpenItem:
    def __init__(self, kind: Kind, output_index: int, call_index: int | None, name: str) -> None:
        self.kind, self.call_index = kind, call_index
        self._name, self._call_id = name, new_call_id()
        self._where = {"item_id": f"{_ID_PREFIX[kind]}_{uuid.uuid4().hex}", "output_index": output_index}
        self._text = ""
        self._logprobs: list[ChatLogprob] = []

    def output(self, status: ItemStatus) -> OutputItem:
        item_id: Any = self._where["item_id"]
        match self.kind:
            case "reasoning":
                content = [ReasoningText(type="reasoning_text", text=self._text)] if self._text else []
                return OutputReasoning(
                    type="reasoning", id=item_id, summary=[], content=content, status=status
                )
            case "message":
                parts = [] if status == "in_progress" else [self._part()]
                return OutputMessage(
                    type="message", id=item_id, role="assistant", status=status, content=parts
                )
            case "function_call":
                call = {"call_id": self._call_id, "name": self._name, "arguments": self._text}
                return OutputFunctionCall(type="function_call", id=item_id, **call, status=status)

    def begin(self) -> Iterator[EventFields]:
        item = self.output("in_progress").to_dict()
        yield "response.output_item.added", {"output_index": self._where["output_index"], "item": item}
        if self.kind == "message":
            yield "response.content_part.added", self._fields(part=self._part().to_dict())

    def add(self, text: str, logprobs: Sequence[ChatLogprob]) -> EventFields:
        self._text += text
        self._logprobs += logprobs
        added = {"logprobs": [logprob.to_dict() for logprob in logprobs]} if self.kind == "message" else {}
        return f"response.{_TEXT[self.kind]}.delta", self._fields(delta=text, **added)

    def end(self, item: OutputItem) -> Iterator[EventFields]:
        done, part = f"response.{_TEXT[self.kind]}.done", self._part().to_dict()
        match self.kind:
            case "reasoning":
                yield done, self._fields(text=self._text)
            case "message":
                yield done, self._fields(text=self._text, logprobs=part["logprobs"])
                yield "response.content_part.done", self._fields(part=part)
            case "function_call":
                yield done, self._fields(name=self._name, arguments=self._text)
        output_index = self._where["output_index"]
        yield "response.output_item.done", {"output_index": output_index, "item": item.to_dict()}

    def _part(self) -> OutputText:
        return OutputText(type="output_text", text=self._text, annotations=[], logprobs=self._logprobs)

    def _fields(self, **fields: Any) -> dict[str, Any]:
        part = {} if self.kind == "function_call" else {"content_index": 0}
        return {**self._where, **part, **fields}


class ResponsesItems:
    """Turns the deltas of a choice into successive items, and their events."""

    def __init__(self) -> None:
        self.finished: list[OutputItem] = []
        self._open: _OpenItem | None = None

    def add(self, delta: TextDelta, logprobs: Sequence[ChatLogprob]) -> Iterator[EventFields]:
        call = delta.tool_call
        if call is not None:
            yield from self._grow("function_call", call.index, call.name or "", call.arguments, ())
        elif delta.reasoning:
            yield from self._grow("reasoning", None, "", delta.reasoning, ())
        elif delta.text or (logprobs and self._open is not None and self._open.kind == "message"):
            yield from self._grow("message", None, "", delta.text, logprobs)

    def close(self, *, complete: bool) -> Iterator[EventFields]:
        """The answer has ended; returns the last events. An answer of nothing is an empty message."""
        if self._open is None:
            yield from self._grow("message", None, "", "", ())
        yield from self._end("completed" if complete else "incomplete")

    def _grow(
        self, kind: Kind, call_index: int | None, name: str, text: str, logprobs: Sequence[ChatLogprob]
    ) -> Iterator[EventFields]:
        if self._open is None or (self._open.kind, self._open.call_index) != (kind, call_index):
            yield from self._end("completed")
            self._open = _OpenItem(kind, len(self.finished), call_index, name)
            yield from self._open.begin()
        yield self._open.add(text, logprobs)

    def _end(self, status: ItemStatus) -> Iterator[EventFields]:
        if self._open is not None:
            item = self._open.output(status)
            yield from self._open.end(item)
            self.finished.append(item)
            self._open = None
