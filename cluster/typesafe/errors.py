"""Errors in TypeSafe's shape: 422 with a list of what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.openai.errors import ApiError
from cluster.openai.response_model import ResponseModel

Location = tuple[str | int, ...]


class WrongField(ResponseModel):
    """One thing that is wrong."""

    loc: list[str | int]
    """Where: body, then names of fields and of questions, and indices."""
    msg: str
    type: str
    """The error's code."""


class UnprocessableObject(ResponseModel):
    """The body of a response with status 422."""

    detail: list[WrongField]


class UnprocessableError(ApiError):
    """422: a field of the request is wrong."""

    def __init__(self, location: Sequence[str | int], message: str, code: str) -> None:
        """`location` is the path of the field in the body."""
        super().__init__(422, message, code, param=".".join(map(str, location)) or None)
        self.location: Location = ("body", *location)

    @property
    def body(self) -> dict[str, Any]:
        """The response's body."""
        return {"detail": [{"loc": list(self.location), "msg": self.message, "type": self.code}]}


def unprocessable(
    error: ApiError, names: Sequence[str] = (), fields: Mapping[str, str] | None = None
) -> ApiError:
    """An error as clients of this protocol expect it: 422 in place of 400; others stay as they are.

    `names`: of the questions, which paths have in place of numbers. `fields`: other names of fields.
    """
    if error.status != 400 or isinstance(error, UnprocessableError):
        return error
    steps: list[str | int] = []
    for name, number in re.findall(
        r"([^.\[\]]+)|\[(\d+)\]", re.sub(r"\[(\d+)\]", r".[\1]", error.param or "")
    ):
        if number and steps == ["questions"] and int(number) < len(names):
            steps.append(names[int(number)])
        else:
            steps.append(int(number) if number else (fields or {}).get(name, name))
    return UnprocessableError(steps, error.message, error.code)
