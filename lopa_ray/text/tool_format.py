"""ToolFormat: how functions are described to a model, and how the model writes function calls into its text. The
checkpoint's chat template shows which of `TOOL_FORMATS` the model was trained with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lopa_ray.text.chat_template import ChatTemplate, Message
from lopa_ray.text.gemma_arguments import QUOTE, read_arguments, write_arguments
from lopa_ray.text.json_content import json_text


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str  # the arguments as the JSON text of an object


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is written as `opening`, its name, `separator`, its arguments as JSON, and `closing`."""

    opening: str
    separator: str
    closing: str
    trigger: str
    """The beginning of `opening`. Wherever this text occurs in an answer, a call begins."""
    end: str
    """The end of `closing`; empty if a call ends with its arguments."""
    is_object: bool
    """Whether name and arguments are members of one JSON object."""

    has_json_arguments: ClassVar[bool] = True
    """Whether the arguments are JSON, so that a constraint made from a JSON schema can hold for them."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Texts of a call that may be special tokens of a tokenizer."""
        return (self.trigger, self.separator, self.end)

    def write(self, call: ToolCall) -> str:
        return f"{self.opening}{call.name}{self.separator} {call.arguments}{self.closing}"

    def split(self, text: str) -> tuple[str, str] | None:
        """Split `text`, which follows a trigger, into the body of the call and the text after the call. Returns None if
        the call has not ended yet."""
        if self.end:
            at = text.find(self.end)
            while at >= 0 and self._ends_within_string(text[:at]):
                at = text.find(self.end, at + 1)
            return None if at < 0 else (text[:at], text[at + len(self.end) :])
        start = text.find("{")
        try:
            _, length = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else (None, -1)
        except (ValueError, RecursionError):
            return None
        return None if length < 0 else (text[: start + length], text[start + length :])

    def _ends_within_string(self, text: str) -> bool:
        """Whether the JSON object that begins in `text` ends inside an unterminated string."""
        _, brace, rest = text.partition("{")
        try:
            json.loads(brace + rest)
        except (ValueError, RecursionError) as error:
            return isinstance(error, json.JSONDecodeError) and error.msg.startswith("Unterminated string")
        return False

    def parse(self, body: str) -> ToolCall | None:
        """The call in a body; None if the body is not a valid call. Any white space between its parts is accepted."""
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


@dataclass(frozen=True, slots=True)
class GemmaToolFormat(ToolFormat):
    """The format of Gemma 4 and DiffusionGemma, whose arguments are not JSON; see `lopa_ray.text.gemma_arguments`."""

    has_json_arguments: ClassVar[bool] = False

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.trigger, QUOTE, self.end)

    def write(self, call: ToolCall) -> str:
        return f"{self.opening}{call.name}{write_arguments(json.loads(call.arguments))}{self.closing}"

    def _ends_within_string(self, text: str) -> bool:
        return text.count(QUOTE) % 2 == 1

    def parse(self, body: str) -> ToolCall | None:
        before, brace, rest = body.partition("{")
        prefix, _, name = before.partition(":")
        if prefix.strip() != "call" or not name.strip():
            return None
        try:
            arguments = read_arguments(brace + rest)
            return ToolCall(name.strip(), json.dumps(arguments, ensure_ascii=False, allow_nan=False))
        except (ValueError, RecursionError):
            return None


HERMES = ToolFormat(
    '<tool_call>\n{"name": "', '", "arguments":', "}\n</tool_call>", "<tool_call>", "</tool_call>", True
)
"""The format of Hermes and Qwen, which SDAR and LLaDA2 use too."""

TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": HERMES,
    "mistral": ToolFormat("[TOOL_CALLS]", "[ARGS]", "", "[TOOL_CALLS]", "", False),
    "gemma4": GemmaToolFormat("<|tool_call>call:", "", "<tool_call|>", "<|tool_call>", "<tool_call|>", False),
}
"""Name of vLLM's parser → format."""


def tool_format(template: ChatTemplate) -> ToolFormat:
    """The Hermes format if the template contains no known trigger."""
    return next((known for known in TOOL_FORMATS.values() if known.trigger in template.source), HERMES)


def without_tool_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], known: ToolFormat
) -> list[Message]:
    """The same chat for a template that does not support tools. The tools are described in the system message, calls
    become part of the assistant's text, and the results of functions become messages of the user."""
    written: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if written and written[-1]["role"] == "tool":
                written[-1]["content"] += f"\n{content}"
                continue
        calls = [
            known.write(ToolCall(call["function"]["name"], json_text(call["function"]["arguments"])))
            for call in message.get("tool_calls", ())
        ]
        text = "\n".join([content, *calls] if content else calls) if calls else content
        written.append({**message, "content": text})
    if tools:
        system = _description(tools, known)
        if written and written[0]["role"] == "system":
            written[0]["content"] += f"\n\n{system}"
        else:
            written.insert(0, {"role": "system", "content": system})
    return [
        {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        | ({"role": "user"} if message["role"] == "tool" else {})
        for message in written
    ]


def _description(tools: Sequence[Mapping[str, Any]], known: ToolFormat) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    shape = f"{known.opening}NAME{known.separator} ARGUMENTS{known.closing}"
    return (
        f"# Tools\n\nYou can call these functions:\n<tools>\n{listed}\n</tools>\n\n"
        f"Write a call, with its arguments as a JSON object, in this form:\n{shape}"
    )
