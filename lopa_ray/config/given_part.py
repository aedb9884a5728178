"""GivenPart: a part of the answer that the request gives, as text or token ids, and where it stands."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from lopa_ray.config.strict import StrictModel
from lopa_ray.errors import SettingsError, short_repr


class GivenPart(StrictModel):
    """Tokens of the answer that are decided before the first step. Parts are listed in the order of the answer."""

    at: int | None = Field(default=None, ge=0)
    """Position of its first token, counted from the beginning of the answer. In place of `hole`."""

    hole: int | None = Field(default=None, ge=0)
    """Positions left to the model between the part before it, or the beginning of the answer, and this one: the most
    tokens that the hole may have. Without `at` and `hole` the part follows directly."""

    text: str | None = Field(default=None, min_length=1)
    """The part's text, in place of `token_ids`."""

    token_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    """The part's token ids, in place of `text`."""

    @field_validator("token_ids", mode="before")
    @classmethod
    def _list_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_place_and_one_content(self) -> Self:
        if (self.text is None) == (self.token_ids is None):
            raise SettingsError(
                f"got {'neither text nor' if self.text is None else 'both text and'} token_ids; a given part has one "
                "of them",
                setting="text",
            )
        if self.at is not None and self.hole is not None:
            raise SettingsError(
                f"got both at ({self.at}) and hole ({self.hole}); a given part has one of them at most",
                setting="at",
            )
        return self


def parse_given_parts(value: Any) -> Any:
    """A list of parts, each as an object or as plain values, as a tuple of parts; any other value as it is. Raises
    SettingsError that says which part is wrong."""
    if not isinstance(value, list | tuple):
        return value
    parts = []
    for number, part in enumerate(value):
        if not isinstance(part, dict | GivenPart):
            got = short_repr(part)
            raise SettingsError(f"part {number}: got {got}; allowed: an object with text or token_ids")
        try:
            given = {str(key): given for key, given in part.items()} if isinstance(part, dict) else None
            parts.append(part if given is None else GivenPart(**given))
        except SettingsError as error:
            raise SettingsError(f"part {number}: {error}") from None
    return tuple(parts)
