"""JSON schemas as regular expressions: what matches is valid, and what is not understood is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.json_schema import MAX_PATTERNS, schema_regex
from lopa_ray.constraints.regex import integer_range
from lopa_ray.errors import SettingsError


def matches(schema: Any, text: str) -> bool:
    return re.fullmatch(schema_regex(json.dumps(schema)), text) is not None


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
        ({"type": "array", "items": False}, ["[]"], ["[1]"]),
        ({"type": "array", "items": {"type": "null"}, "minItems": 2}, ["[null,null,null]"], ["[null]"]),
        ({"type": "number"}, ["-1.5e+7", "0"], ["01", ".5", "+1"]),
        ({"type": "string", "format": "date-time"}, ['"2024-12-31T23:59:59.5Z"'], ['"2024-12-31T23:59:59"']),
        ({"type": "string", "format": "email"}, ['"a.b@c.de"'], ['"a"@b"', '"a@b"']),
        ({"allOf": [{"type": "boolean"}]}, ["true"], ["1"]),
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


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"type": "number", "multipleOf": 2}, "keyword multipleOf is not supported"),
        (
            {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
            r"at a: .*uniqueItems",
        ),
        ({"not": {}}, "keyword not is"),
        ({"oneOf": [{}]}, "keyword oneOf is"),
        ({"type": "number", "minimum": 2}, "keyword minimum"),
        ({"anyOf": [{"type": "null"}], "type": "object"}, "keyword type"),
        ({"allOf": [{}, {}]}, "Merge"),
        ({"type": "object", "required": ["a"]}, "required names 'a'"),
        ({"type": "string", "format": "ipv4"}, "format: got 'ipv4'; allowed: date"),
        ({"type": "string", "pattern": "a", "maxLength": 2}, "pattern cannot be combined"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "below"),
        ({"type": "any"}, "type: got 'any'"),
        ({"$ref": "#/$defs/x"}, "which the schema does not contain"),
        ({"$ref": "https://example.org"}, "a place in this schema"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no value"),
        ({"enum": []}, "no value"),
        ({"anyOf": []}, "anyOf: got"),
        (False, "no value"),
        ([], "allowed: an object"),
        ({"type": "string", "format": ["date"]}, "format: got"),
        ({"type": "object", "properties": {"a": {}}, "required": [["a"]]}, "required names"),
        ({"enum": [1], "type": [["integer"]]}, "type: got"),
        ({"enum": [1], "type": "int"}, "type: got 'int'"),
        ({"const": float("nan")}, "no JSON"),
    ],
)
def test_refusals(schema: Any, match: str) -> None:
    with pytest.raises(SettingsError, match=f"^JSON schema.*{match}"):
        schema_regex(json.dumps(schema))


def test_a_pattern_that_could_break_out_of_its_string_is_refused() -> None:
    for pattern in (".*", '"', "[^a]", r"\s\S"):
        with pytest.raises(SettingsError, match="quotes, backslashes or control"):
            schema_regex(json.dumps({"type": "string", "pattern": pattern}))
    assert matches({"type": "string", "pattern": r"^\d\s(a|b)$"}, '"7 b"')


def test_schemas_that_unfold_without_end_are_refused() -> None:
    names = [f"n{at}" for at in range(6)]
    everything = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    with pytest.raises(SettingsError, match="unfolds into too much"):
        schema_regex(json.dumps({**everything, "$defs": dict.fromkeys(names, everything)}))
    doubling = {
        f"d{at}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(30)
    }
    with pytest.raises(SettingsError, match="unfolds into too much"):
        schema_regex(json.dumps({"$ref": "#/$defs/d0", "$defs": doubling | {"d30": {"type": "null"}}}))
    # All optional: each may be the first. Long ones: many times over.
    long_names = {f"{at}{'x' * 1000}": {"type": "null"} for at in range(4000)}
    long_value = {"enum": ["x" * 150_000]}
    for schema in (
        {"type": "object", "properties": long_names},
        {"type": "object", "properties": dict(list(long_names.items())[:50])},
        {"type": "array", "prefixItems": [{"$ref": "#/$defs/long"}] * 2000, "$defs": {"long": long_value}},
    ):
        with pytest.raises(SettingsError, match="unfolds into too much"):
            schema_regex(json.dumps(schema))
    with pytest.raises(SettingsError, match=r"no JSON|nested too deeply"):
        schema_regex("[" * 100_000)
    with pytest.raises(SettingsError, match="no JSON"):
        schema_regex("{")


def _with_patterns(patterns: list[str]) -> str:
    properties = {f"p{at}": {"type": "string", "pattern": pattern} for at, pattern in enumerate(patterns)}
    return json.dumps({"type": "object", "properties": properties, "required": list(properties)})


def test_patterns_are_tried_out_once_each_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    build = ByteAutomaton.from_regex
    monkeypatch.setattr(
        ByteAutomaton, "from_regex", lambda regex: (tried.append(regex), build("a"))[1]
    )  # a process each, which this test need not wait for
    assert schema_regex(_with_patterns(["x1", "x2"] * 20)).count("x1") == 20
    assert sorted(tried) == ["x1", "x2"]
    schema_regex(_with_patterns([f"y{at}" for at in range(MAX_PATTERNS)]))
    with pytest.raises(
        SettingsError, match=rf"p{MAX_PATTERNS}: got more than {MAX_PATTERNS} different patterns"
    ):
        schema_regex(_with_patterns([f"z{at}" for at in range(MAX_PATTERNS + 1)]))
    assert len(tried) == 2 + 2 * MAX_PATTERNS
