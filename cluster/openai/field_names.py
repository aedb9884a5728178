"""A decode group's errors with the client's names: a group names decode settings, a client the fields that set them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.openai.errors import ApiError
from lopa_ray.config.generation_settings import GUIDED
from lopa_ray.errors import PromptError, SettingsError

_RENAMED_SETTINGS = re.compile(rf"\b({'|'.join(('max_new_tokens', 'top_logprobs', *GUIDED))})\b")
"""Fields that have another name for some clients."""


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of one request."""

    prompt_field: str
    """The field that has the prompt."""
    setting_fields: Mapping[str, str]
    """Decode setting → the field that sets it, or could."""
    constraint_field: str | None
    """The field that constrains the answer to a pattern or schema, if one does."""

    def translate(self, error: PromptError | SettingsError, response: ApiError) -> ApiError:
        """The response that `api_error` made of an error, with the field that is wrong."""
        message = _RENAMED_SETTINGS.sub(
            lambda name: self.setting_fields[name[0]].rpartition(".")[2], response.message
        )
        if isinstance(error, PromptError):
            param: str | None = self.prompt_field
        else:  # errors about patterns name no setting
            param = self.setting_fields.get(error.setting or "", self.constraint_field)
        return ApiError(response.status, message, response.code, param=param)
