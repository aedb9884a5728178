"""ConstraintSpec: what an answer's text has to keep to, before it is compiled for a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.constraints.json_schema import schema_regex
from lopa_ray.constraints.regex import alternatives, literal


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """At most one of the first four is given. Equal specs have equal constraints."""

    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json_schema: str | None = None
    structural_tag: str | None = None
    bad_words: tuple[str, ...] = ()

    def pattern(self) -> str | None:
        """The regular expression that the text matches as a whole; None if `structural_tag` or nothing is given.

        Raises SettingsError for a JSON schema that is not supported.
        """
        if self.json_schema is not None:
            return schema_regex(self.json_schema)
        if self.choice is not None:
            return alternatives(map(literal, self.choice))
        return self.regex
