"""Marks for parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest


def also_long(*values: Any) -> list[Any]:
    """Further parameters, for `make test-long` alone: the tests that everybody runs must stay short."""
    return [_param(value, pytest.mark.nightly) for value in values]


def also_slow(*values: Any) -> list[Any]:
    """Further parameters, for `.ci/run` and `make test-long`."""
    return [_param(value, pytest.mark.slow) for value in values]


def _param(value: Any, mark: pytest.MarkDecorator) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
