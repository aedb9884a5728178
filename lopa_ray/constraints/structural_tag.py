"""Structural tags: free text in which certain texts (triggers) begin a part of a fixed form, such as a tool call.

The JSON format is vLLM's: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`. Wherever a trigger
occurs in the answer's text, a complete structure that begins with it must follow, and then free text again. Without
triggers the whole answer is one of the structures.
"""

from __future__ import annotations

import json
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lopa_ray.constraints.automaton_builder import TooManyStatesError, build_automaton
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import Embedded, choice, literal, sequence
from lopa_ray.constraints.json_expressions import SPACE, choice_of_texts
from lopa_ray.constraints.json_schema import fitting_automata
from lopa_ray.errors import SettingsError
from lopa_ray.text_input import parse_json

# Enough for 100 functions of ordinary size.
MAX_LITERAL_CHARS = 32_768  # of all beginnings, ends and triggers
MAX_STATES = 40_000
SPARE_STATES = 8_000  # of these, for texts around the schemas
MAX_TRIGGER_BYTES = 4_000


class Structure(BaseModel):
    """A part of a fixed form: `begin`, then JSON that is valid under a schema, then `end`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    begin: str
    json_schema: dict[str, object] = Field(alias="schema")
    end: str = ""


class StructuralTag(BaseModel):
    """The structures of an answer, and the triggers that begin them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    structures: list[Structure] = Field(min_length=1, max_length=256)
    triggers: list[Annotated[str, Field(min_length=1)]] = Field(max_length=16)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a structural tag from JSON text. Raises SettingsError if it is not valid."""
        try:
            return cls.model_validate(parse_json(text))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            where = ".".join(map(str, detail["loc"]))
            raise SettingsError(
                f"got an invalid structural tag ({f'{where}: ' if where else ''}{detail['msg']}); give structures "
                "(begin, schema, end) and triggers"
            ) from None
        except ValueError as error:
            raise SettingsError(f"got a structural tag that is no JSON ({error}); give JSON text") from None

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        size = len(self.literals) + sum(map(len, self.triggers))
        if size > MAX_LITERAL_CHARS:
            raise ValueError(f"got {size} characters outside of schemas; allowed: {MAX_LITERAL_CHARS}")
        for structure in self.structures if self.triggers else ():
            if not any(structure.begin.startswith(trigger) for trigger in self.triggers):
                raise ValueError(f"got begin {structure.begin!r}, which begins with none of the triggers")
        for trigger in self.triggers:
            if any(trigger in other for other in self.triggers if other != trigger):
                raise ValueError(f"got the trigger {trigger!r}, which is a part of another one")
            if not any(structure.begin.startswith(trigger) for structure in self.structures):
                raise ValueError(f"got the trigger {trigger!r}, with which no structure begins")
        return self

    def automaton(self, trigger: str = "", max_states: int = MAX_STATES - 1) -> ByteAutomaton:
        """The automaton of all structures that begin with a trigger, without the trigger itself, and with one space at
        most before the JSON. Raises SettingsError for a schema that is not supported, and for too many states."""
        # Structures with the same schema and end share their states.
        begins: dict[tuple[str, str], list[str]] = {}
        for structure in self.structures:
            if structure.begin.startswith(trigger):
                schema = json.dumps(structure.json_schema, ensure_ascii=False)
                begins.setdefault((schema, structure.end), []).append(structure.begin.removeprefix(trigger))
        automata = fitting_automata([schema for schema, _ in begins], MAX_STATES - SPARE_STATES)
        expression = choice(
            sequence(choice_of_texts(texts), SPACE, Embedded(automaton), literal(end))
            for automaton, ((_, end), texts) in zip(automata, begins.items(), strict=True)
        )
        assert expression is not None  # each trigger begins a structure
        try:
            built = build_automaton(expression)
            if len(built.transitions) - 1 > max_states:
                raise TooManyStatesError
        except TooManyStatesError:
            raise SettingsError(
                f"the structures need more than {MAX_STATES} states; use fewer or simpler structures and triggers"
            ) from None
        return built

    @property
    def literals(self) -> str:
        """All literal texts of the structures, joined by NUL."""
        return "\0".join(text for structure in self.structures for text in (structure.begin, structure.end))


def tagged_text_automaton(tag: StructuralTag) -> tuple[ByteAutomaton, int]:
    """The automaton of free text with tags, and the number of its first states, which belong to the free text. Raises
    SettingsError for a schema that is not supported, for too many states, and for a structure that may continue after
    its end."""
    if not tag.triggers:
        return tag.automaton(), 0
    triggers = [trigger.encode() for trigger in tag.triggers]
    if sum(map(len, triggers)) > MAX_TRIGGER_BYTES:
        raise SettingsError(
            f"got triggers of {sum(map(len, triggers))} bytes; allowed: {MAX_TRIGGER_BYTES}; shorten them"
        )
    free, trigger_states = _search_automaton(triggers)
    parts, offset = [free], len(free)
    for trigger, reached in zip(tag.triggers, trigger_states, strict=True):
        automaton = tag.automaton(trigger, MAX_STATES - offset)
        dead = len(automaton.transitions) - 1
        if (automaton.transitions[automaton.accepting] != dead).any():
            raise SettingsError(
                f"structures that begin with {trigger!r} may go on after their end; give each "
                "an end that its JSON cannot contain, such as a closing tag"
            )
        # A complete structure leads back to the start of the free text.
        target = np.arange(dead + 1) + offset
        target[automaton.accepting], target[dead] = 0, -1
        parts.append(target[automaton.transitions[:dead]].astype(np.int32))
        free[free == reached] = offset
        offset += dead
    transitions = np.concatenate([*parts, np.full((1, 256), -1, np.int32)])
    transitions[transitions == -1] = offset
    accepting = np.zeros(offset + 1, np.bool_)
    accepting[: len(free)] = True
    return ByteAutomaton(transitions, accepting), len(free)


def _search_automaton(words: list[bytes]) -> tuple[npt.NDArray[np.int32], list[int]]:
    """The automaton of Aho and Corasick (1975), which finds `words` in a text, none a part of another one: the next
    states, int32 [states, 256], and the state in which each word is complete."""
    prefixes = sorted({word[:length] for word in words for length in range(len(word) + 1)}, key=len)
    state_of = {prefix: state for state, prefix in enumerate(prefixes)}
    transitions = np.zeros((len(prefixes), 256), np.int32)
    suffix = [0] * len(prefixes)  # the state of the longest other prefix with which a prefix ends
    for prefix, state in state_of.items():
        transitions[state] = transitions[suffix[state]]
        for word in words:
            if word.startswith(prefix) and word != prefix:
                byte, child = word[len(prefix)], state_of[word[: len(prefix) + 1]]
                suffix[child] = int(transitions[suffix[state], byte]) if prefix else 0
                transitions[state, byte] = child
    return transitions, [state_of[word] for word in words]
