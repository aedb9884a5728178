"""The base of all settings: frozen, no unknown keys, no silent conversions."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from lopa_ray.config.removed import REMOVED
from lopa_ray.errors import SettingsError

FIELDS = "Fields:"  # what the list of fields in a docstring begins with


class StrictModel(BaseModel):
    """Anything wrong is one `SettingsError` that names each setting, what was got, what is allowed and what the setting
    means. The docstring of each class lists its fields. A mapping in the place of a section makes the section."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            details = error.errors(include_url=False)
            message = "; ".join(_describe_one(detail, type(self)) for detail in details)
            raise SettingsError(message, setting=_setting_of(details[0])) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        own = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
        cls.__doc__ = "\n\n".join([own, "\n".join([FIELDS, *_field_lines(cls)])])

    @property
    def implied(self) -> frozenset[str]:
        """Names of settings that have the value that others imply: they count as not set."""
        return frozenset()

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some values changed."""
        given = {name: getattr(self, name) for name in self.model_fields_set - self.implied}
        return type(self)(**{**given, **changes})


def numbers_from_text(value: Any) -> Any:
    """A mapping with whole numbers as keys, which are text in JSON; another value as it is."""
    if not isinstance(value, dict):
        return value
    return {
        int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key: of_key
        for key, of_key in value.items()
    }


def _field_lines(model: type[BaseModel]) -> Iterator[str]:
    """The fields of a model for its docstring."""
    for name, field in model.model_fields.items():
        factory = getattr(field.default_factory, "__name__", None)
        default = "" if field.is_required() else f" = {factory}()" if factory else f" = {field.default!r}"
        module = getattr(field.annotation, "__module__", None)
        yield f"    {name}: {inspect.formatannotation(field.annotation, module)}{default}"
        for line in textwrap.wrap(
            field.description or "", 92, break_long_words=False, break_on_hyphens=False
        ):
            yield f"        {line}"


def _setting_of(detail: ErrorDetails) -> str | None:
    """The setting that an error is about. A validator of the whole model raises a SettingsError that names it, because
    pydantic gives such an error no location."""
    if detail["loc"]:
        return str(detail["loc"][0])
    cause = detail.get("ctx", {}).get("error")
    return cause.setting if isinstance(cause, SettingsError) else None


def _describe_one(detail: ErrorDetails, model: type[BaseModel]) -> str:
    location = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        known = list(model.model_fields)
        close = difflib.get_close_matches(location, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
        if location in REMOVED:
            hint = f"it is gone: {REMOVED[location]}"
        return f"unknown setting {location} = {detail['input']!r} in {model.__name__}; {hint}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if detail["type"] == "value_error":
        return f"{location}: {message}" if location else message
    field = model.model_fields.get(str(detail["loc"][0])) if detail["loc"] else None
    meaning = f" ({' '.join(field.description.split())})" if field and field.description else ""
    return f"{location}: got {detail['input']!r}; allowed: {message}{meaning}"
