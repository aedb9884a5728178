"""Errors in TypeSafe's shape: 422 with a list of what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.openai.errors import ApiError
from cluster.openai.response_model import ResponseModel


class WrongField(ResponseModel):
    """One thing that is wrong."""

    loc: list[str | int]
    """The place: body, then names of fields and of questions, and indices."""
    msg: str
    type: str
    """The error's code."""


class UnprocessableObject(ResponseModel):
    """The body of a response with status 422."""

    detail: list[WrongField]


class UnprocessableError(ApiError):
    """422: a field of the request is wrong."""

    def __init__(self, location: Sequence[str | int], message: str, code: str) -> None:
        super().__init__(422, message, code, param=".".join(map(str, location)) or None)
        self._location = ["body", *location]

    @property
    def body(self) -> dict[str, Any]:
        return {"detail": [{"loc": self._location, "msg": self.message, "type": self.code}]}


def unprocessable(
    error: ApiError, names: Sequence[str] = (), fields: Mapping[str, str] | None = None
) -> ApiError:
    """An error as clients of this protocol expect it: 422 in place of 400; others stay as they are. `names`: the
    questions' names, which replace their numbers. `fields`: field → its name in this protocol."""
    if error.status != 400 or isinstance(error, UnprocessableError):
        return error
    steps = re.findall(r"[^.\[\]]+", error.param or "")
    location = [int(step) if step.isdecimal() else (fields or {}).get(step, step) for step in steps]
    if len(location) > 1 and location[0] == "questions":
        location[1] = names[int(steps[1])]
    return UnprocessableError(location, error.message, error.code)
