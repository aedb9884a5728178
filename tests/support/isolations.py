"""Ways to confine programs, as parameters of tests."""

from __future__ import annotations

from functools import cache

import pytest

from lopa_lab.paper.tasks.sandbox import Isolation, run_program
from lopa_ray.errors import LopaError

ISOLATIONS = [Isolation.NAMESPACES, pytest.param(Isolation.LANDLOCK, marks=pytest.mark.slow)]
"""What the kernel may refuse is second where both are there, so .ci/run and `make test-long` try it."""


def require_isolation(isolation: Isolation) -> None:
    """Skip the test where the kernel refuses it."""
    refusal = _refusal(isolation)
    if refusal:
        pytest.skip(f"this machine refuses {isolation}: {refusal}")


@cache
def _refusal(isolation: Isolation) -> str:
    try:
        run_program("", isolation=isolation)
    except LopaError as error:
        return str(error)
    return ""
