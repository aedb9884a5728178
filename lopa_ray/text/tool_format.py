"""ToolFormat: how a model is told of functions, and how it writes calls of them into its text.

A checkpoint's chat template shows which format it was trained with; `TOOL_FORMATS` has those that are known here.
A new one is one more entry there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lopa_ray.text.chat_template import ChatTemplate, Message


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function."""

    name: str
    arguments: str
    """JSON text of an object."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is written as `opening`, its name, `separator`, its arguments as JSON, and `closing`."""

    opening: str
    separator: str
    closing: str
    trigger: str
    """What `opening` begins with: with this text a call begins, wherever it stands in an answer."""
    end: str
    """What `closing` ends with; empty: a call ends with its arguments."""
    is_object: bool
    """Name and arguments are members of one JSON object."""

    def write(self, call: ToolCall) -> str:
        """A call as the model would write it."""
        return f"{self.opening}{call.name}{self.separator} {call.arguments}{self.closing}"

    def split(self, text: str) -> tuple[str, str] | None:
        """`text`, which comes behind a trigger, as the body of a call and what follows the call.

        None if the call has not ended yet.
        """
        if self.end:
            at = text.find(self.end)
            while at >= 0 and _ends_within_string(text[:at]):
                at = text.find(self.end, at + 1)
            return None if at < 0 else (text[:at], text[at + len(self.end) :])
        start = text.find("{")
        try:
            _, length = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else (None, -1)
        except (ValueError, RecursionError):
            return None
        return None if length < 0 else (text[: start + length], text[start + length :])

    def parse(self, body: str) -> ToolCall | None:
        """The call that a body is; None if it is none. White space between its parts may be any."""
        before, _, rest = ("", "", body) if self.is_object else body.partition(self.separator)
        try:
            value = json.loads(rest)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        name = value.get("name") if self.is_object else before.strip()
        arguments = value.get("arguments", {}) if self.is_object else value
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        try:
            return ToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
        except ValueError:  # Python reads NaN and infinities, which JSON does not have
            return None


HERMES = ToolFormat(
    '<tool_call>\n{"name": "', '", "arguments":', "}\n</tool_call>", "<tool_call>", "</tool_call>", True
)
"""Of Hermes and Qwen, which SDAR and LLaDA2 took over."""

TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": HERMES,
    "mistral": ToolFormat("[TOOL_CALLS]", "[ARGS]", "", "[TOOL_CALLS]", "", False),
}
"""By the names that vLLM has for their parsers."""


def tool_format(template: ChatTemplate) -> ToolFormat:
    """The format that a chat template writes; Hermes' for one that writes no calls."""
    return next((known for known in TOOL_FORMATS.values() if template.mentions(known.trigger)), HERMES)


def without_tool_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], known: ToolFormat
) -> list[Message]:
    """The same chat for a template that knows no tools: they are described in a system message, calls are part of
    an assistant's text, and what functions returned is a user's."""
    found: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if found and found[-1]["role"] == "tool":
                found[-1]["content"] += f"\n{content}"
                continue
        calls = [
            known.write(ToolCall(call["function"]["name"], _arguments_text(call["function"]["arguments"])))
            for call in message.get("tool_calls", ())
        ]
        text = "\n".join([content, *calls] if content else calls) if calls else content
        found.append({**message, "content": text})
    if tools:
        system = _description(tools, known)
        if found and found[0]["role"] == "system":
            found[0]["content"] += f"\n\n{system}"
        else:
            found.insert(0, {"role": "system", "content": system})
    return [
        {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        | ({"role": "user"} if message["role"] == "tool" else {})
        for message in found
    ]


def _description(tools: Sequence[Mapping[str, Any]], known: ToolFormat) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    shape = f"{known.opening}NAME{known.separator} ARGUMENTS{known.closing}"
    return (
        f"# Tools\n\nYou can call these functions:\n<tools>\n{listed}\n</tools>\n\n"
        f"Write a call, with its arguments as a JSON object, in this form:\n{shape}"
    )


def _ends_within_string(text: str) -> bool:
    """Whether the JSON object that begins in `text` breaks off inside of a string."""
    _, brace, rest = text.partition("{")
    try:
        json.loads(brace + rest)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _arguments_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
