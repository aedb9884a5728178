"""CompileProcess: a process in which patterns and schemas are compiled."""

from __future__ import annotations

from typing import Any

from lopa_ray.errors import SettingsError
from lopa_ray.limited_process import LimitedProcess, ProcessLimitError


class CompileProcess(LimitedProcess):
    """A `LimitedProcess` whose limits are those of what a request sends."""

    def call(self, method: str, argument: object, limit_s: float) -> Any:
        """See `LimitedProcess.call`. Raises SettingsError for what needs more time or memory."""
        try:
            return super().call(method, argument, limit_s)
        except ProcessLimitError as error:
            raise SettingsError(
                f"the pattern or schema is too large: {error} to compile; use fewer and shorter repetitions, less "
                "nesting, or a simpler schema"
            ) from None
