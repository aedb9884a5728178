"""AnswerFormat: how the answer of a chat begins, what its text is bound to, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cluster.choices.answer_parser import AnswerParser, CallParser, ChatParser, PlainParser
from cluster.choices.messages import ChoicesRequest
from lopa_ray.config.generation_settings import GUIDED
from lopa_ray.engine.session_factory import RenderedPrompt
from lopa_ray.errors import SettingsError, about_setting
from lopa_ray.text.reasoning_tags import reasoning_tags
from lopa_ray.text.rendered_chat import RenderedChat
from lopa_ray.text.tokenizer import Tokenizer
from lopa_ray.text.tool_format import ToolFormat, tool_format

FREE_SCHEMA_STATES = 20_000  # states that the automata of functions that are not strict may have together
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The consequences of a request's tools, and of the checkpoint's template, for its answer."""

    new_parser: Callable[[], AnswerParser] = PlainParser
    prefill: str = ""  # the beginning of the answer, which is not left to the model
    settings: Mapping[str, Any] = field(default_factory=dict)  # decode settings in place of the request's
    shown_tokens: frozenset[str] = frozenset()  # special tokens that the answer's text has


def answer_format(
    request: ChoicesRequest, tokenizer: Tokenizer, prompt: RenderedPrompt, schema_size: Callable[[str], int]
) -> AnswerFormat:
    """The format of the answer to a prompt. `schema_size`: the states of a schema's automaton; it raises SettingsError
    for a format that is not supported. Raises CheckpointError for a template that cannot be read."""
    if request.raw:
        return AnswerFormat()
    template = tokenizer.chat_template(request.tools)
    known, tags = tool_format(template), reasoning_tags(template)
    _check_calls_can_be_constrained(request, known)
    # A template that opens the reasoning ends with the tag; only a chat has a template.
    thinking = isinstance(prompt, RenderedChat) and prompt.text.rstrip().endswith(tags.begin)
    # A constrained answer cannot contain reasoning.
    end_thinking = f"\n{tags.end}\n\n" if thinking else ""
    shown = frozenset((*tags.tokens, *known.tokens))
    if request.forced_tools:
        named = request.forced_tools[0] if len(request.forced_tools) == 1 else None
        prefill = known.opening + ("" if named is None else named + known.separator)
        structures = [
            {"begin": "" if named else name + known.separator, "schema": _parameters(request.functions[name])}
            for name in request.forced_tools
        ]
        # Other constraints apply to answers in text only, and nothing may cut the call.
        settings = {**dict.fromkeys(GUIDED), **_tag(structures, []), "stop_token_ids": ()}
        return AnswerFormat(partial(CallParser, known, named), end_thinking + prefill, settings, shown)
    bound = [name for name in GUIDED if request.settings.get(name) is not None]
    schema = _json_object(request.settings.get("guided_json"))
    tools = known if request.tools and (not bound or schema is not None) else None
    parser = partial(
        ChatParser,
        tags,
        thinking=thinking and not bound,
        tools=tools,
        parallel_tool_calls=request.parallel_tool_calls,
    )
    settings = {}
    if tools is not None and schema is not None:
        with about_setting("guided_json"):  # among the functions' schemas, no error can say whose it is
            schema_size(request.settings["guided_json"])
        answer = {"begin": "", "schema": schema}
        settings = {"guided_json": None, **_tag([answer, *_calls(request, known, schema_size)], [])}
    elif tools is not None and request.has_strict_functions:
        settings = _tag(_calls(request, known, schema_size), [known.trigger])
    return AnswerFormat(parser, end_thinking if bound else "", settings, shown)


def checked_schemas(request: ChoicesRequest) -> list[str]:
    if request.raw or request.forced_tools:
        return []
    guided_json = request.settings.get("guided_json") if request.tools else None
    if guided_json is None and not request.has_strict_functions:
        return []
    free = [function for function in request.functions.values() if not function.get("strict")]
    schemas = [json.dumps(_parameters(function)) for function in free]
    return schemas if guided_json is None else [guided_json, *schemas]


def _check_calls_can_be_constrained(request: ChoicesRequest, known: ToolFormat) -> None:
    """Raises SettingsError where calls have to match a schema, and their arguments are not written as JSON."""
    if known.has_json_arguments or not request.tools:
        return
    schema = request.settings.get("guided_json")
    if request.forced_tools or request.has_strict_functions or schema is not None:
        raise SettingsError(
            "guided_structural_tag: this model does not write the arguments of a call as JSON, so no call can be "
            "forced and none can be kept to a schema; use tool_choice auto without strict and without a schema for the "
            "answer",
            setting="guided_structural_tag",
        )


def _json_object(text: str | None) -> dict[str, Any] | None:
    """The object that a text is; None for any other, about which the decode settings complain."""
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _tag(structures: Sequence[Mapping[str, Any]], triggers: Sequence[str]) -> dict[str, Any]:
    tag = {"structures": structures, "triggers": triggers}
    return {"guided_structural_tag": json.dumps(tag, ensure_ascii=False)}


def _calls(
    request: ChoicesRequest, known: ToolFormat, schema_size: Callable[[str], int]
) -> list[dict[str, Any]]:
    """A structure per function. One that is not strict takes any object where its schema cannot be kept, or is
    large."""
    structures = []
    free_states = FREE_SCHEMA_STATES
    for name, function in request.functions.items():
        schema = _parameters(function)
        if not function.get("strict"):
            try:
                free_states -= schema_size(json.dumps(schema))
            except SettingsError:
                schema = ANY_OBJECT
            if free_states < 0:
                schema = ANY_OBJECT
        begin = known.opening + name + known.separator
        structures.append({"begin": begin, "schema": schema, "end": known.closing})
    return structures


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters") or NO_PARAMETERS
