"""Whatever a schema's automaton accepts is valid, as an independent validator says: drawn texts and changed ones."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.constraints.automaton_operations import accepts
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.json_schema import schema_automaton
from lopa_ray.errors import SettingsError
from support.automaton_texts import TextSampler
from support.schema_cases import CASES


@cache
def automaton_of(schema: str) -> ByteAutomaton:
    return schema_automaton(schema)


def validator_of(schema: Any) -> Any:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def check_answers(schema: Any, automaton: ByteAutomaton, seed: int, number: int) -> None:
    validator, sampler = validator_of(schema), TextSampler(automaton, seed)
    for _ in range(number):
        text = sampler.draw()
        assert accepts(automaton, text.encode()), text
        for candidate in (text, *(sampler.mutated(text) for _ in range(4))):
            if accepts(automaton, candidate.encode()):
                validator.validate(json.loads(candidate))


@pytest.mark.parametrize("name", CASES)
def test_texts_are_kept_and_refused(name: str) -> None:
    schema, good, bad = CASES[name]
    automaton = automaton_of(json.dumps(schema))
    for text in good:
        validator_of(schema).validate(json.loads(text))
        assert accepts(automaton, text.encode()), text
    for text in bad:
        assert not accepts(automaton, text.encode()), text


@pytest.mark.parametrize("name", CASES)
def test_answers_are_valid(name: str) -> None:
    schema = CASES[name].schema
    check_answers(schema, automaton_of(json.dumps(schema)), seed=len(name), number=40)


NAMES = st.sampled_from(["a", "b", "ab", "x-a"])
VALUES = st.sampled_from([None, True, False, 0, 1, 2.5, -3, "", "a", "ab", "x-a", [], ["a"], {}, {"a": 1}])
WHOLE = st.integers(0, 3)
BOUNDS = st.one_of(st.integers(-12, 12), st.decimals(-3, 3, places=2).map(float))
PATTERNS = st.sampled_from(["^a", "b$", "^[ab]*$", "a|b", "^x-", "\\d", "^.{2}$", "\\S+", "[^a]"])
FORMATS = st.sampled_from(["date", "ipv4", "email", "uuid", "uri", "int64"])
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


def _combined(refs: list[str], inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=4),
            "const": VALUES,
            "properties": by_name,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "propertyNames": inner,
            "minProperties": WHOLE,
            "maxProperties": WHOLE,
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
            "dependentSchemas": by_name,
            "unevaluatedProperties": st.booleans(),
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            "minItems": WHOLE,
            "maxItems": WHOLE,
            "uniqueItems": st.booleans(),
            "minLength": WHOLE,
            "maxLength": WHOLE,
            "pattern": PATTERNS,
            "format": FORMATS,
            "minimum": BOUNDS,
            "exclusiveMinimum": BOUNDS,
            "maximum": BOUNDS,
            "exclusiveMaximum": BOUNDS,
            "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.1]),
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            **({"$ref": st.sampled_from(refs)} if refs else {}),
        },
    ).flatmap(_few_keywords)


def _few_keywords(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas with all keywords have no values."""
    names = st.lists(st.sampled_from(sorted(schema)), max_size=5, unique=True) if schema else st.just([])
    return names.map(lambda chosen: {name: schema[name] for name in chosen})


LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": TYPES}),
    st.fixed_dictionaries({"const": VALUES}),
    st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, st.just({"const": 1}))}
    ),
)


def schemas(*refs: str) -> st.SearchStrategy[Any]:
    """Schemas with references to these places."""
    return st.recursive(LEAVES, partial(_combined, list(refs)), max_leaves=6)


A, B = "#/$defs/a", "#/$defs/b"


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(schemas(A, B), schemas(B), schemas(), st.integers(0, 1000))
def test_answers_under_any_schema_are_valid(schema: Any, first: Any, second: Any, seed: int) -> None:
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {"a": first, "b": second}}
    whole |= schema if isinstance(schema, dict) else {"allOf": [schema]}
    try:
        automaton = schema_automaton(json.dumps(whole))
    except SettingsError:
        return
    check_answers(whole, automaton, seed, number=6)
