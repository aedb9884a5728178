"""Marks for parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest


def also_long(*values: Any) -> list[Any]:
    """Further parameters, for `make test-long` alone: the tests that everybody runs must stay short."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]
