"""TolerantObject: the base of what clients hand back, whose fields other servers may have made."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ConfigDict, model_validator

from lopa_ray.errors import short_repr
from lopa_ray.text.client_object import ClientObject

MAX_LOGGED = 100  # clients choose the names, so the log has no more of them

logger = logging.getLogger("lopa.http")

_logged: set[str] = set()  # fields that a line of this process' log names


class TolerantObject(ClientObject):
    """A part of a conversation. Unknown fields are ignored, as vLLM does: clients hand messages back as another server
    or a library of theirs wrote them (`id`, `cache_control`). The log names a field the first time that it has a
    value."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _log_ignored_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in value.keys() - cls.model_fields.keys() - cls.unsupported_fields.keys():
            if value[name] in (None, "", [], {}) or len(_logged) >= MAX_LOGGED:
                continue
            field = f"{cls.__name__}.{name}"
            if field not in _logged:
                _logged.add(field)
                logger.warning("requests have fields that are ignored here: %s", short_repr(field))
        return value
