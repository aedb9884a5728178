"""Translates a JSON schema to an automaton of JSON texts that are valid under the schema, though not all of them.

Objects have the listed properties in a fixed order. Between JSON tokens there is at most one space. Strings contain no
\\u escapes. An automaton cannot count levels, so nesting ends at a fixed depth where the schema does not define it (an
object without properties) or refers to itself. The error for a schema that cannot be kept names the keyword.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lopa_ray.constraints.array_expression import array_expression
from lopa_ray.constraints.automaton_builder import TooManyStatesError, build_automaton
from lopa_ray.constraints.automaton_operations import accepts
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import Expression, Language, choice, literal
from lopa_ray.constraints.json_expressions import BOOLEAN, NULL, any_array, any_object, any_value, string_of
from lopa_ray.constraints.json_schema_keywords import NAMED_TYPES, schema_error
from lopa_ray.constraints.object_expression import object_expression
from lopa_ray.constraints.scalar_expressions import integer, number, string_inside
from lopa_ray.constraints.schema_facts import ANY_SIZE, TYPES, Facts, Part, Parts, type_of
from lopa_ray.constraints.schema_reader import LIMITS, Limits, SchemaReader
from lopa_ray.errors import SettingsError
from lopa_ray.text_input import parse_json

MAX_VALUES = 1_000  # different parts of a schema, with references followed
MAX_STATES = 20_000
FEW_SCHEMAS = 16  # so many schemas together may each have the widest limits


@lru_cache(1024)
def schema_automaton(text: str, level: int = 0) -> ByteAutomaton:
    """The automaton of a schema that is given as JSON text. `level`: the index of the widest of `LIMITS` to try. Raises
    SettingsError for text that is not a JSON schema, for keywords that are not supported (it names the keyword and its
    place in the schema), and for a schema that no value satisfies."""
    try:
        schema = parse_json(text)
    except ValueError as error:
        raise schema_error("", f"got text that is no JSON ({error}); give a JSON schema") from None
    for limits in LIMITS[level:]:
        try:
            expression = SchemaCompiler(schema, limits).value((Part(schema, ""),))
            if expression is not None:
                return build_automaton(expression, MAX_STATES)
        except TooManyStatesError:
            continue
        except RecursionError:
            raise schema_error("", "it is nested too deeply; simplify it") from None
        if expression is None and limits == LIMITS[0]:
            raise schema_error(
                "", "it allows no value of finite length, or none that is small enough; relax it"
            )
    raise schema_error("", "it unfolds into too much; use fewer references, properties and repetitions")


def fitting_automata(texts: Sequence[str], max_states: int) -> list[ByteAutomaton]:
    """See `schema_automaton`. If the automata of several schemas have too many states together, the larger automata get
    tighter limits."""
    level = 0 if len(texts) <= FEW_SCHEMAS else 1
    automata = [schema_automaton(text, level) for text in texts]
    while sum(map(_size, automata)) > max_states and level < len(LIMITS) - 1:
        level += 1
        for at, text in enumerate(texts):
            if _size(automata[at]) > max_states // len(texts):
                # A schema that allows no value under tighter limits stays as it is.
                with suppress(SettingsError):
                    automata[at] = schema_automaton(text, level)
    return automata


def _size(automaton: ByteAutomaton) -> int:
    return len(automaton.transitions)


class SchemaCompiler:
    """Makes expressions of the parts of one schema. Equal parts share theirs."""

    def __init__(self, root: Any, limits: Limits) -> None:
        self.reader, self.limits = SchemaReader(root, limits), limits
        self._known: dict[tuple[object, ...], Language] = {}
        self._listed_bytes = 0

    def value(self, parts: Parts) -> Language:
        """Raises SettingsError and TooManyStatesError."""
        key = tuple(part.key() for part in parts)
        if key not in self._known:
            if len(self._known) == MAX_VALUES:
                raise TooManyStatesError
            found = self.reader.alternatives(parts)
            self._known[key] = choice([expression for facts in found for expression in self._of_facts(facts)])
        return self._known[key]

    def _of_facts(self, facts: Facts) -> list[Language]:
        """An expression for each type."""
        if facts.values is not None:
            return list(self.listed(facts))
        if facts.types == TYPES:
            if facts == Facts(path=facts.path):
                return [any_value(self.limits.any_depth)]
            facts = replace(facts, types=_meant_types(facts))
        return [self._of_type(facts, name) for name in sorted(facts.types)]

    def _of_type(self, facts: Facts, name: str) -> Language:
        bare = facts == Facts(types=facts.types, path=facts.path)
        excluded = [value for value in facts.excluded if type_of(value) == name]
        match name:
            case "object" | "array" if excluded:
                raise schema_error(facts.path, "not: objects and arrays cannot be excluded one by one")
            case "object" if bare:
                return any_object(self.limits.any_depth)
            case "object":
                return object_expression(facts, self)
            case "array" if bare:
                return any_array(self.limits.any_depth)
            case "array":
                return array_expression(facts, self)
            case "string":
                return string_of(string_inside(facts, self.limits.count))
            case "integer":
                return number(facts) if "fraction" in facts.types else integer(facts)
            case "boolean":
                left = [one for one in (True, False) if one not in excluded]
                return BOOLEAN if len(left) == 2 else choice([literal(json.dumps(one)) for one in left])
            case "null":
                return None if excluded else NULL
        return None  # a fraction is never needed: where integers are excluded, answers have no numbers

    def names(self, facts: Facts) -> ByteAutomaton | None:
        """The automaton of the names that an object's members may have, in quotes; None if all are allowed. Raises
        SettingsError and TooManyStatesError."""
        if not facts.names:
            return None
        strings = Facts(types=NAMED_TYPES["string"])
        found = [one.merged(strings) for one in self.reader.alternatives(facts.names)]
        names = choice([expression for one in found for expression in self._of_facts(one)])
        # Without any name the object is empty: no text is accepted.
        return build_automaton(literal("\n") if names is None else names)

    def listed(self, facts: Facts) -> list[Expression]:
        """The values that an alternative lists, as far as they have its other facts. Raises SettingsError and
        TooManyStatesError."""
        assert facts.values is not None
        rest = replace(facts, values=None, excluded=())
        free = rest == Facts(types=rest.types, path=rest.path)
        found: list[Expression] = []
        automata: dict[str, ByteAutomaton | None] = {}
        for value in facts.values:
            text, name = json.dumps(value, ensure_ascii=False), type_of(value)
            if not free and name not in automata:
                types = frozenset({name, "integer"}) if name == "fraction" else frozenset({name})
                language = choice(self._of_facts(replace(rest, types=types)))
                automata[name] = None if language is None else build_automaton(language)
            automaton = automata.get(name)
            if free or (automaton is not None and accepts(automaton, text.encode())):
                found.append(literal(text))
                self._listed_bytes += len(text)
                if self._listed_bytes > 2 * MAX_STATES:
                    raise TooManyStatesError
        return found


def _meant_types(facts: Facts) -> frozenset[str]:
    """The types that facts are about; all types if they are about none. A schema without `type` rarely means others."""
    about = {
        "object": facts.members or facts.required or facts.absent or facts.names or facts.num_properties != ANY_SIZE,
        "array": facts.items or facts.contains or facts.unique or facts.num_items != ANY_SIZE,
        "string": facts.patterns or facts.formats or facts.length != ANY_SIZE,
        "integer": facts.lower or facts.upper or facts.multiples,
    }  # fmt: skip
    found = frozenset(name for name, facts_about in about.items() if facts_about)
    return (found | {"fraction"} if "integer" in found else found) or TYPES
