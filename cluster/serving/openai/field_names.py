"""Refusals of a decode group in the client's words: a group speaks of decode settings, clients of fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.serving.openai.errors import ApiError
from lopa_ray.errors import PromptError, SettingsError

_SETTING_FIRST = re.compile(r"(?:unknown setting )?(\w+)")
_SETTINGS = re.compile(r"\b(max_new_tokens|top_logprobs|guided_json|guided_regex|guided_choice)\b")
"""Those that clients may know by another name."""


@dataclass(frozen=True, slots=True)
class FieldNames:
    """One request's."""

    prompt: str
    """The field that has the prompt."""
    fields: Mapping[str, str]
    """Decode setting → the field that sets it, or could."""
    pattern: str | None
    """The field that binds the answer to a pattern or schema, if one does."""

    def refusal(self, error: PromptError | SettingsError, told: ApiError) -> ApiError:
        """What `api_error` made of an error, with the field that is wrong."""
        message = _SETTINGS.sub(lambda name: self.fields[name[0]].rpartition(".")[2], told.message)
        return ApiError(told.status, message, told.code, param=self._param(error))

    def _param(self, error: PromptError | SettingsError) -> str | None:
        if isinstance(error, PromptError):
            return self.prompt
        first = _SETTING_FIRST.match(str(error))
        # What is wrong with a pattern is said in many ways, and none begins with a setting.
        return self.fields.get(first[1] if first else "", self.pattern)
