"""Answers of which the request gives parts, on an engine: results, streams, files, and what is refused."""

from __future__ import annotations

import re

import pytest

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import parse_record
from lopa_ray import GivenPart, LocalEngine, PromptTooLongError, SettingsError

pytestmark = pytest.mark.medium

PROBLEM = "Tom has 3 pens. He buys 4 pens. How many pens does Tom have?"
SUFFIX = " So the answer is 7."
PARTS = [{"text": "Tom"}, {"hole": 16, "text": " pens.\n"}]
DECODERS = ["lopa", "fast_dllm"]


@pytest.mark.parametrize("decoder", DECODERS)
def test_an_answer_before_a_suffix_is_the_hole_alone(engine: LocalEngine, decoder: str) -> None:
    """EOS ends the hole early; the suffix is part of each canvas, and not of the result."""
    assert engine.tokenizer is not None
    behind = engine.tokenizer.encode_later_part(SUFFIX)
    canvases = []
    result = engine.generate(
        PROBLEM,
        decoder=decoder,
        suffix=SUFFIX,
        max_new_tokens=24,
        on_step=lambda _, step: canvases.append(step.canvas),
    )
    assert all(list(canvas[24:]) == behind and len(canvas) == 24 + len(behind) for canvas in canvases)
    assert result.finish_reason == "stop" and result.token_ids[-1] == engine.vocabulary.eos_token_id
    assert result.tokens == len(result.token_ids) < 24
    assert result.text == engine.tokenizer.decode(result.token_ids) and SUFFIX not in result.text
    prompt = engine.encode(PROBLEM)
    assert result.prompt_tokens == len(prompt) + len(behind)
    assert result.tpf == result.tokens / result.steps


def test_a_full_hole_is_cut_by_its_length(engine: LocalEngine) -> None:
    result = engine.generate(PROBLEM, suffix=SUFFIX, max_new_tokens=5)
    assert (result.finish_reason, result.tokens, len(result.token_ids)) == ("length", 5, 5)
    alone = engine.generate(PROBLEM, max_new_tokens=5)
    assert engine.generate(PROBLEM, suffix="", max_new_tokens=5).token_ids == alone.token_ids
    empty = engine.generate(PROBLEM, suffix=SUFFIX, max_new_tokens=0)
    assert (empty.text, empty.tokens, empty.steps) == ("", 0, 0)


@pytest.mark.parametrize("decoder", DECODERS)
def test_given_parts_are_in_the_answer(engine: LocalEngine, decoder: str) -> None:
    result = engine.generate(PROBLEM, decoder=decoder, given_parts=PARTS, max_new_tokens=48)
    assert result.text is not None and result.text.startswith("Tom") and " pens.\n" in result.text
    assert engine.tokenizer is not None
    given = [engine.tokenizer.encode_later_part(part["text"]) for part in PARTS]
    same = [GivenPart(token_ids=tuple(given[0])), GivenPart(at=len(given[0]) + 16, token_ids=tuple(given[1]))]
    again = engine.generate(PROBLEM, decoder=decoder, given_parts=tuple(same), max_new_tokens=48)
    assert (again.token_ids, again.steps) == (result.token_ids, result.steps)


@pytest.mark.parametrize("values", [{"suffix": SUFFIX, "max_new_tokens": 24}, {"given_parts": PARTS}])
def test_a_stream_has_the_text_of_the_result(engine: LocalEngine, values: dict[str, object]) -> None:
    result = engine.generate(PROBLEM, **values)
    chunks = list(engine.stream(PROBLEM, **values))
    assert "".join(chunk.text or "" for chunk in chunks) == result.text
    last = chunks[-1].result
    assert last is not None and (last.token_ids, last.tokens) == (result.token_ids, result.tokens)


def test_of_many_holes_few_drafts_are_scored(engine: LocalEngine) -> None:
    """A step fills many holes at once, and a draft that has all of them right is improbable."""
    parts = [{"hole": 1, "token_ids": [20 + at % 50]} for at in range(100)]
    values = {"given_parts": parts, "max_new_tokens": 200}
    result = engine.generate(PROBLEM, values, num_branches=16, lookahead="verified")
    alone = engine.generate(PROBLEM, values, num_branches=1)
    assert result.token_ids == alone.token_ids and result.steps < alone.steps
    assert result.forwards < 9 * result.steps


def test_a_pattern_covers_the_given_text(engine: LocalEngine) -> None:
    regex = r'\{"name": "[a-z]{1,8}", "count": [0-9]{1,3}\}'
    parts = [{"text": '{"name": "'}, {"hole": 8, "text": '", "count": '}, {"hole": 4, "text": "}"}]
    result = engine.generate(PROBLEM, guided_regex=regex, given_parts=parts, max_new_tokens=60)
    assert result.text is not None and re.fullmatch(regex, result.text)
    assert result.finish_reason == "stop"
    with pytest.raises(SettingsError, match="given_parts: no answer with what is given matches guided_regex"):
        engine.generate(PROBLEM, guided_regex=regex, given_parts=[{"text": "no"}], max_new_tokens=60)


def test_a_suffix_that_cannot_be_used_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(SettingsError, match=r"^suffix: .*Unicode"):
        engine.generate("1 + 1", suffix="\ud800")
    with pytest.raises(SettingsError, match=r"suffix: got token .* the mask token"):
        engine.generate("1 + 1", suffix="<|mask|>", raw=True)
    assert engine.generate("1 + 1", suffix="<|mask|>", raw=True, parse_special=False).steps
    with pytest.raises(PromptTooLongError, match="prompt tokens and max_new_tokens"):
        engine.generate("1 + 1", suffix="x", max_new_tokens=5000)


def test_lines_of_a_file_give_parts(engine: LocalEngine) -> None:
    records = [
        {"prompt": PROBLEM, "suffix": SUFFIX, "settings": {"max_new_tokens": 24}},
        {"prompt": PROBLEM, "given_parts": PARTS},
        {"prompt": PROBLEM, "settings": {"given_parts": PARTS}},
        {"prompt": PROBLEM, "given_parts": [{"text": 3}]},
        {"prompt": PROBLEM, "suffix": 3},
        {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": PROBLEM, "suffix": SUFFIX, "max_tokens": 24},
        },
    ]
    lines = [parse_record(number, record) for number, record in enumerate(records, 1)]
    rows = list(decode_lines(engine, lines, raw=False))
    first, second, third, fourth, fifth, sixth = rows
    assert first.row["text"] == engine.generate(PROBLEM, suffix=SUFFIX, max_new_tokens=24).text
    assert second.row["text"] == third.row["text"] == engine.generate(PROBLEM, given_parts=PARTS).text
    assert "given_parts: part 0: text: got 3" in fourth.error
    assert fifth.error.startswith("suffix: got 3")
    choice = sixth.row["response"]["body"]["choices"][0]
    assert choice["text"] == engine.generate(PROBLEM, raw=True, suffix=SUFFIX, max_new_tokens=24).text
    assert choice["finish_reason"] in ("stop", "length")
