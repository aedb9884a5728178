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
        return "".join(text + (special or "") for text, special in self.runs)

    def behind(self, beginning: RenderedChat) -> RenderedChat | None:
        """The rest after a beginning of this chat; None if the chat does not begin so."""
        *whole, (text, _) = beginning.runs
        at = len(whole)
        if list(self.runs[:at]) != whole or at >= len(self.runs) or not self.runs[at][0].startswith(text):
            return None
        rest, special = self.runs[at]
        return RenderedChat(((rest[len(text) :], special), *self.runs[at + 1 :]))

    def cut_before(self, text: str) -> tuple[RenderedChat, RenderedChat]:
        """The chat in two parts, the second of which begins with the last occurrence of a text outside of special
        tokens. Raises ValueError if there is none."""
        for at, (run, special) in reversed([*enumerate(self.runs)]):
            if (begin := run.rfind(text)) >= 0:
                first = RenderedChat((*self.runs[:at], (run[:begin], None)))
                return first, RenderedChat(((run[begin:], special), *self.runs[at + 1 :]))
        raise ValueError(f"the chat has no {text!r}")

    def replaced(self, old: str, new: str) -> RenderedChat:
        return RenderedChat(tuple((run.replace(old, new), special) for run, special in self.runs))
