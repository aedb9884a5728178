"""RenderedChat: the text that a chat template makes of a chat, before it is encoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as text, in which the special tokens of the template are told from the same characters in messages."""

    runs: tuple[tuple[str, str | None], ...]
    """Runs of plain text, each with the special token that the template wrote after it. The last run has None."""

    @property
    def text(self) -> str:
        """All of it, special tokens included."""
        return "".join(text + (special or "") for text, special in self.runs)
