"""The answering side of `lopa chat`: its interface, and the engine that this process has opened."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from lopa_ray.engine.base import Engine

Message: TypeAlias = dict[str, str]  # role and content


class ChatPartner(Protocol):
    note: str  # the cost of the last answer, and whether it was cut; empty if neither is known

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        """The answer to the last message, in parts, as they become final. Raises LopaError."""


class EnginePartner:
    def __init__(self, engine: Engine) -> None:
        self.note = ""
        self._engine = engine

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        self.note = ""
        for chunk in self._engine.stream(messages):
            if chunk.text:
                yield chunk.text
            if chunk.result is not None:
                result = chunk.result
                self.note = note_of(result.tokens, result.steps, result.tpf, result.finish_reason)


def note_of(tokens: int | None, steps: int | None, tpf: float | None, finish_reason: str | None) -> str:
    """A note for a person: what an answer took, and that it was cut, as far as that is known."""
    parts = []
    if tokens is not None and steps is not None and tpf is not None:
        parts.append(f"{tokens} tokens in {steps} steps, TPF {tpf:.2f}")
    if finish_reason == "length":
        parts.append("cut at the length limit; --max-new-tokens raises it")
    return "; ".join(parts)
