"""JSON schemas as automata: what these accept is valid, and what is not supported is refused."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from lopa_ray.constraints import string_pattern
from lopa_ray.constraints.automaton_operations import accepts
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.json_schema import fitting_automata, schema_automaton
from lopa_ray.constraints.json_schema_keywords import MAX_PATTERNS
from lopa_ray.constraints.number_patterns import decimal_range, integer_range
from lopa_ray.errors import SettingsError

pytestmark = pytest.mark.medium


def matches(schema: Any, text: str) -> bool:
    return accepts(schema_automaton(json.dumps(schema)), text.encode())


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5, "description": "Given name"},
        "age": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["a", "b\"c"]}, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            PERSON,
            [
                '{"name":"Mia","tags":[]}',
                '{ "name" : "é\\"\\\\", "age": null, "tags": ["a", "b\\"c"] }',
                '{"name":"Mia","age":7,"born":"2024-02-28","tags":["a"]}',
            ],
            [
                '{"name":"Mia"}',
                '{"tags":[],"name":"Mia"}',
                '{"name":"Michel","tags":[]}',
                '{"name":"Mia","age":-7,"tags":[]}',
                '{"name":"Mia","born":"2024-02-30","tags":[]}',
                '{"name":"Mia","tags":["a","a","a"]}',
                '{"name":"Mia",,"tags":[]}',
                '{"name":"Mia","tags":[],}',
            ],
        ),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, ["{}", '{"b":1}', '{"a":{"x":[1]}}'], ['{,"b":1}']),
        ({"type": "object"}, ['{"a":{"b":1}}', '{"a":[[]]}'][:1], ['{"a":{"b":{"c":1}}}', "[]"]),
        ({"const": "a.b"}, ['"a.b"'], ['"aXb"']),
        ({"enum": [1, "1", None], "type": ["integer", "null"]}, ["1", "null"], ['"1"']),
        ({"type": "array", "prefixItems": [{"type": "null"}, {"const": 2}]}, ["[null, 2]"], ["[null]", "[null,2,3]"]),
        ({"type": "number"}, ["-1.5e+7", "0"], ["01", ".5", "+1"]),
        ({"type": "string", "format": "date-time"}, ['"2024-12-31T23:59:59.5Z"'], ['"2024-12-31T23:59:59"']),
        (True, ["1", "[{}]"], ["[[[1]]]", "nul"]),
    ],
)  # fmt: skip
def test_values(schema: Any, good: list[str], bad: list[str]) -> None:
    for text in good:
        json.loads(text)
        assert matches(schema, text), text
    for text in bad:
        assert not matches(schema, text), text


def test_a_reference_to_itself_ends_at_a_depth() -> None:
    schema = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
            }
        },
    }
    assert matches(schema, '{"next":{"next":{"next":null}}}')
    assert not matches(schema, '{"next":{"next":{"next":{"next":null}}}}')


BOUND = st.none() | st.integers(-2000, 2000)


@given(BOUND, BOUND, st.integers(-3000, 3000))
def test_integers_are_those_within_bounds(least: int | None, most: int | None, number: int) -> None:
    regex = integer_range(least, most)
    inside = (least is None or number >= least) and (most is None or number <= most)
    assert (regex is not None and re.fullmatch(regex, str(number)) is not None) == inside
    assert regex is None or re.fullmatch(regex, f"0{number}") is None


POINTS = st.none() | st.decimals(-40, 40, places=3)


@given(POINTS, POINTS, st.booleans(), st.booleans(), st.decimals(-50, 50, places=4))
def test_numbers_are_those_within_bounds(
    least: Decimal | None, most: Decimal | None, above: bool, below: bool, number: Decimal
) -> None:
    lower = None if least is None else (least, above)
    upper = None if most is None else (most, below)
    regex = decimal_range(lower, upper)
    inside = (least is None or number > least or (number == least and not above)) and (
        most is None or number < most or (number == most and not below)
    )
    text = f"{number:f}"
    for spelled in {text, text.rstrip("0").rstrip(".")} - {"-0", "-0.0000"}:
        assert (regex is not None and re.fullmatch(regex, spelled) is not None) == inside


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (
            {"type": "object", "properties": {"a": {"unevaluatedItems": False}}},
            r"at a: .*unevaluatedItems is not",
        ),
        ({"type": "array", "contains": {}, "minContains": 2}, "minContains: got 2"),
        ({"type": "array", "contains": {}, "uniqueItems": True}, "contains is supported once"),
        ({"type": "array", "prefixItems": [{}], "uniqueItems": True}, "not supported beside tuples"),
        (
            {"type": "array", "items": {"type": "object"}, "uniqueItems": True, "minItems": 2},
            "uniqueItems with minItems",
        ),
        ({"not": {"items": {}}}, "at not: not: it is supported"),
        ({"type": "object", "not": {"const": {}}}, "cannot be excluded one by one"),
        (
            {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "time"}]},
            "may be valid together",
        ),
        ({"type": "integer", "multipleOf": 0}, "multipleOf: got 0; allowed: a number above 0"),
        ({"type": "number", "minimum": 2e15}, "minimum: got 2"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no value"),
        ({"type": "string", "pattern": "a(?=b)c"}, "pattern: got 'a.*lookahead is supported behind"),
        ({"type": "string", "pattern": "^(a|(?=b))"}, "look-around"),
        ({"type": "string", "pattern": "[a"}, "bracket"),
        ({"type": "string", "pattern": 7}, "a regular expression"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "below"),
        (
            {"allOf": [{"$id": "b", "$ref": "#/$defs/x"}], "$defs": {"x": {}}},
            "references in a schema with its own name",
        ),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "oneOf": [{"const": 1}, {"const": 2}]},
            "oneOf: its",
        ),
        ({"type": "any"}, "type: got 'any'"),
        ({"$ref": "#/$defs/x"}, "which the schema does not contain"),
        ({"$ref": "https://example.org"}, "a place in this schema"),
        ([], "allowed: an object"),
        ({"type": "string", "format": ["date"]}, "format: got"),
        ({"type": "object", "properties": {"a": {}}, "required": [["a"]]}, "required: got"),
        ({"const": float("nan")}, "no JSON"),
    ],
)
def test_refusals(schema: Any, match: str) -> None:
    with pytest.raises(SettingsError, match=f"^JSON schema.*{match}"):
        schema_automaton(json.dumps(schema))


def test_a_pattern_keeps_to_characters_that_json_does_not_escape() -> None:
    for pattern in (".*", "^[^a]+$", r"^\S\D\W$", r"[\s\S]*"):
        automaton = schema_automaton(json.dumps({"type": "string", "pattern": pattern}))
        for text in ('"b"c"', '"\\"', '"b\nc"', '"b\\nc"', '"'):
            assert not accepts(automaton, text.encode()), (pattern, text)
    assert matches({"type": "string", "pattern": r"^\d\s(a|b)$"}, '"7 b"')


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^\S$", "\u00a0"),
        (r"^\D$", "\u0663"),
        (r"^\W$", "\u00e9"),
        ("^.$", "\u2028"),
        (r"^[^\d]$", "\u0663"),
        (r"^[^\W]$", "\u00e9"),
    ],
)
def test_what_engines_read_differently_is_in_no_answer(pattern: str, text: str) -> None:
    assert not matches({"type": "string", "pattern": pattern}, f'"{text}"')
    # Nor is what is excluded by the one reading and not by the other.
    assert not matches({"type": "string", "not": {"pattern": pattern}}, f'"{text}"')


def test_schemas_that_unfold_without_end_are_refused() -> None:
    names = [f"n{at}" for at in range(6)]
    everything = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    with pytest.raises(SettingsError, match="unfolds into too much"):
        schema_automaton(json.dumps({**everything, "$defs": dict.fromkeys(names, everything)}))
    doubling = {
        f"d{at}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{at + 1}"}] * 2, "minItems": 2}
        for at in range(30)
    }
    with pytest.raises(SettingsError, match="none that is small enough"):
        schema_automaton(json.dumps({"$ref": "#/$defs/d0", "$defs": doubling | {"d30": {"type": "null"}}}))
    # All optional: each may be the first. Long ones: many times over.
    long_names = {f"{at}{'x' * 1000}": {"type": "null"} for at in range(4000)}
    long_value = {"enum": ["x" * 150_000]}
    for schema in (
        {"type": "object", "properties": long_names},
        {"type": "object", "properties": dict(list(long_names.items())[:50])},
        {"type": "array", "prefixItems": [{"$ref": "#/$defs/long"}] * 2000, "$defs": {"long": long_value}},
    ):
        with pytest.raises(SettingsError, match="unfolds into too much"):
            schema_automaton(json.dumps(schema))
    with pytest.raises(SettingsError, match=r"no JSON|nested too deeply"):
        schema_automaton("[" * 100_000)
    with pytest.raises(SettingsError, match="no JSON"):
        schema_automaton("{")


def _with_patterns(patterns: list[str]) -> str:
    properties = {f"p{at}": {"type": "string", "pattern": pattern} for at, pattern in enumerate(patterns)}
    return json.dumps({"type": "object", "properties": properties, "required": list(properties)})


def test_patterns_are_tried_out_once_each_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    build = ByteAutomaton.from_regex
    monkeypatch.setattr(
        ByteAutomaton,
        "from_regex",
        lambda regex, trusted: (tried.append(regex), build(regex, trusted=trusted))[1],
    )
    string_pattern.pattern_automaton.cache_clear()
    schema_automaton(_with_patterns(["x1", "x2"] * 20))
    assert sorted(tried) == ["(?:x1)", "(?:x2)"]
    schema_automaton(_with_patterns([f"y{at}" for at in range(MAX_PATTERNS)]))
    with pytest.raises(
        SettingsError, match=rf"p{MAX_PATTERNS}: got more than {MAX_PATTERNS} different patterns"
    ):
        schema_automaton(_with_patterns([f"z{at}" for at in range(MAX_PATTERNS + 1)]))
    assert len(tried) == 2 + 2 * MAX_PATTERNS


def test_many_schemas_share_what_states_there_are() -> None:
    texts = [
        json.dumps({"type": "string", "maxLength": most, "title": str(at)})
        for at, most in enumerate([5] * 9 + [80] * 9)
    ]
    automata = fitting_automata(texts, 4000)
    assert sum(len(automaton.transitions) for automaton in automata) <= 4000
    assert all(accepts(automaton, b'"aaaaa"') for automaton in automata)
    assert not any(accepts(automaton, b'"aaaaaa"') for automaton in automata[:9])
