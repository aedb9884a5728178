"""Splits the text of an answer into parts: reasoning, content and tool calls, each as soon as nothing that follows can
change it: the possible beginning of a tag is held back, and a call until all of it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cluster.choices.messages import ToolCallDelta
from lopa_ray.text.reasoning_tags import ReasoningTags
from lopa_ray.text.tool_format import ToolCall, ToolFormat


@dataclass(slots=True)
class Answer:
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


class AnswerParser(Protocol):
    """The results of `update`, joined, are `answer`."""

    answer: Answer

    @property
    def complete(self) -> bool:
        """The answer has all that it may have; what follows is dropped."""

    def update(self, text: str, *, final: bool = False) -> Iterator[AnswerDelta]:
        """Take in the next text; with `final` nothing is held back any more."""


@dataclass(slots=True)
class PlainParser:
    """All is content."""

    answer: Answer = field(default_factory=Answer)
    complete: bool = False

    def update(self, text: str, *, final: bool = False) -> Iterator[AnswerDelta]:
        if text:
            yield _add(self.answer, AnswerDelta(content=text))


class CallParser:
    """The text is one call, without what the server writes around it: `separator` after the name, and all before."""

    def __init__(self, known: ToolFormat, name: str | None) -> None:
        """`name`: the function's, if the text begins with its arguments."""
        self.answer = Answer()
        self.complete = False
        self._separator, self._name, self._text = known.separator, name, ""

    def update(self, text: str, *, final: bool = False) -> Iterator[AnswerDelta]:
        self._text += text
        if self._name is None:
            name, separator, rest = self._text.partition(self._separator)
            if not separator:
                return
            self._name, self._text = name, rest
        arguments = self._text if self.answer.tool_calls else self._text.lstrip(" ")
        if arguments:
            self._text = ""
            new_name = None if self.answer.tool_calls else self._name
            yield _add(self.answer, AnswerDelta(tool_call=ToolCallDelta(0, new_name, arguments)))


State = Literal["start", "reasoning", "after", "content"]


class ChatParser:
    """Reasoning between its tags at the beginning, then content, and calls if a format is given."""

    def __init__(
        self, tags: ReasoningTags, *, thinking: bool, tools: ToolFormat | None, parallel_tool_calls: bool
    ) -> None:
        """`thinking`: the prompt has opened the reasoning."""
        self.answer = Answer()
        self.complete = False
        self._tags, self._tools, self._parallel_tool_calls = tags, tools, parallel_tool_calls
        self._state: State = "after" if thinking else "start"
        self._in_reasoning = thinking
        self._text = ""
        self._behind_call = False

    def update(self, text: str, *, final: bool = False) -> Iterator[AnswerDelta]:
        self._text += text
        while not self.complete and (delta := self._next(final)) is not None:
            if delta.content and self._behind_call and self.answer.content:
                # The white space around the call was removed, so a line break separates the two texts.
                delta = AnswerDelta(content="\n" + delta.content)
            if delta != AnswerDelta():
                self._behind_call = delta.tool_call is not None
                yield _add(self.answer, delta)

    def _next(self, final: bool) -> AnswerDelta | None:
        """The next piece, which may be a change of state alone; None if that is not known yet."""
        match self._state:
            case "start":
                return self._start(final)
            case "after":  # after a tag, where white space has no meaning
                self._text = self._text.lstrip()
                if not self._text:
                    return None
                self._state = "reasoning" if self._in_reasoning else "content"
                return AnswerDelta()
            case "reasoning":
                return self._reasoning(final)
            case "content":
                return self._content(final)

    def _start(self, final: bool) -> AnswerDelta | None:
        stripped = self._text.lstrip()
        begin = self._tags.begin
        if stripped.startswith(begin):
            self._text, self._in_reasoning, self._state = stripped[len(begin) :], True, "after"
            return AnswerDelta()
        if begin.startswith(stripped) and not final:
            return None
        self._state = "content"
        return AnswerDelta()

    def _reasoning(self, final: bool) -> AnswerDelta | None:
        before, tag, rest = self._text.partition(self._tags.end)
        if tag:
            self._text, self._in_reasoning, self._state = rest, False, "after"
            return AnswerDelta(reasoning=before.rstrip())
        return self._release(_before_tag(self._text, self._tags.end), final, "reasoning")

    def _content(self, final: bool) -> AnswerDelta | None:
        if self._tools is None:
            return self._release(len(self._text), final, "content")
        before, tag, rest = self._text.partition(self._tools.trigger)
        if not tag:
            return self._release(_before_tag(self._text, self._tools.trigger), final, "content")
        if content := before.rstrip():
            # White space before a call is not content, but the call may turn out to be text.
            self._text = self._text[len(content) :]
            return AnswerDelta(content=content)
        split = self._tools.split(rest)
        if split is None and not final:
            return None
        body, after = split or (rest, "")
        call = self._tools.parse(body)
        if call is None:
            # No call after all: text, in which another call may begin.
            self._text = rest
            return AnswerDelta(content=before + tag)
        self._text, self._state = after, "after"
        self.complete = not self._parallel_tool_calls
        new_call = ToolCallDelta(len(self.answer.tool_calls), call.name, call.arguments)
        return AnswerDelta(tool_call=new_call)

    def _release(self, stable: int, final: bool, part: Literal["reasoning", "content"]) -> AnswerDelta | None:
        """The first `stable` characters, without white space at their end where a tag may follow."""
        if final:
            stable = len(self._text)
        elif part == "reasoning" or self._tools is not None:
            stable = len(self._text[:stable].rstrip())
        if not stable:
            return None
        text, self._text = self._text[:stable], self._text[stable:]
        return AnswerDelta(reasoning=text) if part == "reasoning" else AnswerDelta(content=text)


def _before_tag(text: str, tag: str) -> int:
    """The length of `text` before what may be the beginning of `tag` at its end."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((len(text) - size for size in sizes if tag.startswith(text[-size:])), len(text))


def _add(answer: Answer, delta: AnswerDelta) -> AnswerDelta:
    answer.content += delta.content
    answer.reasoning += delta.reasoning
    call = delta.tool_call
    if call is not None and call.name is not None:
        answer.tool_calls.append(ToolCall(call.name, call.arguments))
    elif call is not None:
        last = answer.tool_calls[call.index]
        answer.tool_calls[call.index] = ToolCall(last.name, last.arguments + call.arguments)
    return delta
