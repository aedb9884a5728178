"""ConstraintSpec: the rules for an answer's text, before they are compiled for a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.constraints.automaton_builder import TooManyStatesError, build_automaton
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.json_expressions import choice_of_texts
from lopa_ray.constraints.json_schema import schema_automaton
from lopa_ray.errors import SettingsError


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint by at most one of the first four. Equal specs have equal constraints."""

    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json_schema: str | None = None
    structural_tag: str | None = None
    bad_words: tuple[str, ...] = ()

    def automaton(self) -> ByteAutomaton | None:
        """The automaton of the texts that match as a whole; None if `structural_tag` or nothing is given. Raises
        SettingsError for rules that are not supported, and for too many texts."""
        if self.json_schema is not None:
            return schema_automaton(self.json_schema)
        if self.choice is not None:
            expression = choice_of_texts(self.choice)
            assert expression is not None  # settings have at least one
            try:
                return build_automaton(expression)
            except TooManyStatesError:
                raise SettingsError(
                    "guided_choice: its texts are too long together; use fewer or shorter texts"
                ) from None
        return None if self.regex is None else ByteAutomaton.from_regex(self.regex)
