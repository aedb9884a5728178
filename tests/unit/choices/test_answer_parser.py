"""Answers in arbitrary pieces: reasoning, content and calls, none of which is ever sent by halves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from cluster.choices.answer_parser import (
    Answer,
    AnswerDelta,
    AnswerParser,
    CallParser,
    ChatParser,
    PlainParser,
)
from lopa_ray.text.reasoning_tags import GEMMA_THOUGHT, THINK, ReasoningTags
from lopa_ray.text.tool_format import HERMES, TOOL_FORMATS, ToolCall, ToolFormat

MISTRAL, GEMMA = TOOL_FORMATS["mistral"], TOOL_FORMATS["gemma4"]
FORMATS = st.sampled_from([None, HERMES, MISTRAL, GEMMA])
CALL = ToolCall("f", '{"a": 1}')
PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "\n", " ", "\t "),
    *("<", "<th", "ink>", "</thi", "<tool_", "call>", "[TOOL", "[", "<<", "a", "text", "é🙂"),
    *('{"name": "f", "arguments": {}}', '{"name": ', '"f"', '{"a": "</tool_call>"}', "{}", "}", "f[ARGS]{}"),
    *(HERMES.write(CALL), MISTRAL.write(CALL), '<tool_call>{"name": "g"}</tool_call>'),
    *(
        GEMMA.write(CALL),
        "<|channel>thought\n",
        "<channel|>",
        "<|tool_call>call:f{",
        "<tool_call|>",
        '<|"|>',
        "a:",
    ),
]
NO_CALL = "<tool_call>no</tool_call>"
PARTS = ["a", "a \n", " ", NO_CALL, HERMES.write(CALL), "<tool_", "<think>t \n</think>", "[TOOL_CALLS]no"]
TEXTS = (
    st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
    | st.lists(st.sampled_from(PARTS), max_size=5).map("".join)
    | st.text(max_size=12)
)


def chat(tools: ToolFormat | None = HERMES, *, thinking: bool = False, parallel: bool = True) -> ChatParser:
    tags = tags_of(tools)
    return ChatParser(tags, thinking=thinking, tools=tools, parallel_tool_calls=parallel)


def tags_of(tools: ToolFormat | None) -> ReasoningTags:
    return GEMMA_THOUGHT if tools is GEMMA else THINK


def read(parser: AnswerParser, pieces: Sequence[str]) -> list[AnswerDelta]:
    """All deltas; the last piece is the final one."""
    last = len(pieces) - 1
    return [delta for at, piece in enumerate(pieces) for delta in parser.update(piece, final=at == last)]


def joined(deltas: Sequence[AnswerDelta]) -> Answer:
    answer = Answer()
    for delta in deltas:
        answer.content += delta.content
        answer.reasoning += delta.reasoning
        if (call := delta.tool_call) is not None and call.name is not None:
            assert call.index == len(answer.tool_calls)
            answer.tool_calls.append(ToolCall(call.name, call.arguments))
        elif call is not None:
            last = answer.tool_calls[call.index]
            answer.tool_calls[call.index] = ToolCall(last.name, last.arguments + call.arguments)
    return answer


def whole(text: str, tools: ToolFormat | None = HERMES, **options: bool) -> Answer:
    parser = chat(tools, **options)
    read(parser, [text])
    return parser.answer


def cut(text: str, draw: Any) -> list[str]:
    """Pieces of a text, some of them empty."""
    places = sorted(draw.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.medium
@given(TEXTS, FORMATS, st.booleans(), st.booleans(), st.data())
def test_how_a_text_is_cut_changes_nothing(
    text: str, tools: ToolFormat | None, thinking: bool, parallel: bool, draw: Any
) -> None:
    expected = whole(text, tools, thinking=thinking, parallel=parallel)
    for pieces in (cut(text, draw), list(text) or [""], [*text, ""]):
        parser = chat(tools, thinking=thinking, parallel=parallel)
        deltas = read(parser, pieces)
        assert joined(deltas) == parser.answer == expected
        assert AnswerDelta() not in deltas
        for delta in deltas:
            assert [bool(delta.content), bool(delta.reasoning), bool(delta.tool_call)].count(True) == 1
            if delta.tool_call is not None:  # whole, with its name
                assert delta.tool_call.name and isinstance(json.loads(delta.tool_call.arguments), dict)


@pytest.mark.parametrize(
    "text",
    [f"{NO_CALL} {HERMES.write(CALL)}", f"a \n{NO_CALL}", f"<think> a \n</think> b {HERMES.write(CALL)} c"],
)
def test_no_cut_in_two_changes_anything(text: str) -> None:
    for at in range(len(text)):
        parser = chat()
        assert joined(read(parser, [text[:at], text[at:]])) == whole(text)


@pytest.mark.medium
@given(TEXTS, FORMATS, st.data())
def test_without_reasoning_and_calls_every_character_stays(
    text: str, tools: ToolFormat | None, draw: Any
) -> None:
    parser = chat(tools)
    read(parser, cut(text, draw))
    if not parser.answer.tool_calls and not text.lstrip().startswith(tags_of(tools).begin):
        assert parser.answer == Answer(content=text)


@given(TEXTS, st.data())
def test_all_that_was_sent_stays_true_whatever_follows(text: str, draw: Any) -> None:
    """A head of the text is read as far as it goes; the answer to the whole begins with it."""
    head = text[: draw.draw(st.integers(0, len(text)))]
    parser = chat()
    list(parser.update(head))
    sent, answer = parser.answer, whole(text)
    assert answer.content.startswith(sent.content) and answer.reasoning.startswith(sent.reasoning)
    assert answer.tool_calls[: len(sent.tool_calls)] == sent.tool_calls


@given(TEXTS, st.data())
def test_text_alone_passes_at_once(text: str, draw: Any) -> None:
    parser = PlainParser()
    for piece in cut(text, draw):
        assert "".join(delta.content for delta in parser.update(piece)) == piece
    assert parser.answer == Answer(content=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Answer()),
        ("\n<think>\n why \n</think>\n\n so ", Answer("so ", "why")),
        ("<think></think>so", Answer("so")),
        ("<think>not closed ", Answer("", "not closed ")),
        ("<think>a<think>b</think>c</think>", Answer("c</think>", "a<think>b")),
        ("so <think>late</think>", Answer("so <think>late</think>")),
        ("<thinking>so", Answer("<thinking>so")),
        ("see \n" + HERMES.write(CALL) + "\n", Answer("see", tool_calls=[CALL])),
        ("hi " + HERMES.write(CALL) + " bye", Answer("hi\nbye", tool_calls=[CALL])),
        ("<think>t</think>" + HERMES.write(CALL) * 2, Answer("", "t", [CALL, CALL])),
        ('<tool_call>{"name": "f"}</tool_call>', Answer(tool_calls=[ToolCall("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', Answer(tool_calls=[CALL])),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            Answer(tool_calls=[ToolCall("f", '{"a": "</tool_call>"}')]),
        ),
        ("<tool_call> no " + HERMES.write(CALL), Answer("<tool_call> no", tool_calls=[CALL])),
        ("<think>" + HERMES.write(CALL), Answer("", HERMES.write(CALL))),
    ],
)
def test_answers_and_their_parts(text: str, expected: Answer) -> None:
    assert whole(text) == expected


@pytest.mark.parametrize(
    "body",
    [
        "null",
        '{"name": "f", "arguments": [1]}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": {}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "}}",
        '{"name": "f", "arguments": {"a": 1' + "0" * 5000 + "}}",
    ],
)
def test_what_is_no_call_is_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call> x"
    assert whole(text) == Answer(text)


@pytest.mark.parametrize("name", ["[" * 100_000, "f", "", "f[ARGS]", 'f[ARGS]{"a": NaN}', 'f{"a": 1}'])
def test_what_is_no_call_of_mistrals_is_text(name: str) -> None:
    text = f"[TOOL_CALLS]{name}{'{' * (len(name) > 99)} x"
    assert whole(text, MISTRAL) == Answer(text)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from([HERMES, MISTRAL, GEMMA]),
    st.sampled_from(["", "  ", "\n"]),
)
def test_what_a_format_writes_it_reads(text: str, known: ToolFormat, space: str) -> None:
    call = ToolCall("a.b-c/d:e", json.dumps({text: text, "n": [{"x": None}]}, ensure_ascii=False))
    assert whole(space + known.write(call) + space, known) == Answer(tool_calls=[call])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel>thought\n why \n<channel|>so", Answer("so", "why")),
        ("<|channel>thought\nnot closed ", Answer("", "not closed ")),
        ("so <|channel>thought\nlate<channel|>", Answer("so <|channel>thought\nlate<channel|>")),
        ("<|channel>thought\nt<channel|>see \n" + GEMMA.write(CALL) * 2, Answer("see", "t", [CALL, CALL])),
        ("<|tool_call> call : f { a : 1 } <tool_call|>", Answer(tool_calls=[CALL])),
        ('<|tool_call>call:f{"a":1}<tool_call|>', Answer(tool_calls=[CALL])),
        ("<|tool_call>call:f{}<tool_call|>", Answer(tool_calls=[ToolCall("f", "{}")])),
        (
            '<|tool_call>call:f{a:<|"|><tool_call|>, {"}<|"|>,b:[true,{c:null},-1.5e2,"q"],d:a word}<tool_call|>',
            Answer(
                tool_calls=[
                    ToolCall(
                        "f",
                        '{"a": "<tool_call|>, {\\"}", "b": [true, {"c": null}, -150.0, "q"], "d": "a word"}',
                    )
                ]
            ),
        ),
    ],
)
def test_answers_of_gemma_and_their_parts(text: str, expected: Answer) -> None:
    assert whole(text, GEMMA) == expected


@pytest.mark.parametrize(
    "body",
    [
        "call:f",
        "call:{}",
        "call:f{a}",
        "call:f{a:1,}",
        "call:f{a:1}}",
        'call:f{a:"x}',
        "call:f{a:" + "[" * 100_000 + "}",
        "call:f{a:1e999}",
    ],
)
def test_what_is_no_call_of_gemmas_is_text(body: str) -> None:
    text = f"<|tool_call>{body}<tool_call|> x"
    assert whole(text, GEMMA) == Answer(text)


@given(st.data())
def test_of_one_call_alone_nothing_follows(draw: Any) -> None:
    text = "see " + HERMES.write(CALL) + " more " + HERMES.write(CALL)
    parser = chat(parallel=False)
    deltas = read(parser, cut(text, draw))
    assert parser.complete
    assert joined(deltas) == parser.answer == Answer("see", tool_calls=[CALL])
    assert not list(parser.update("more", final=True))


def test_without_functions_tags_are_text() -> None:
    text = "see\n" + HERMES.write(CALL)
    assert whole("<think>t</think>" + text, None) == Answer(text, "t")


def test_a_prompt_may_have_opened_the_reasoning() -> None:
    assert whole("\n why \n</think>\nso", thinking=True) == Answer("so", "why")
    assert whole("<think>why</think>so", thinking=True) == Answer("so", "<think>why")
    assert whole("cut off", thinking=True) == Answer("", "cut off")


@pytest.mark.medium
@pytest.mark.parametrize("known", [HERMES, MISTRAL])
@given(arguments=st.sampled_from(['{"a": 1}', "{}", '{"a": "[ARGS] </tool_call>"}']), draw=st.data())
def test_forced_calls_come_as_they_are_written(known: ToolFormat, arguments: str, draw: Any) -> None:
    for name, text in (("f", f" {arguments}"), (None, f"f{known.separator} {arguments}"), ("f", arguments)):
        parser = CallParser(known, name)
        deltas = read(parser, cut(text, draw))
        assert joined(deltas) == parser.answer == Answer(tool_calls=[ToolCall("f", arguments)])
        assert next(delta.tool_call.name for delta in deltas if delta.tool_call) == "f"


def test_a_forced_call_without_all_of_its_name_is_none() -> None:
    parser = CallParser(HERMES, None)
    assert read(parser, ["ge", 't", "argum']) == [] and parser.answer == Answer()
