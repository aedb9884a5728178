"""Advice on the extras of pyproject.toml, for messages about a missing package."""

from __future__ import annotations


def install_advice(extra: str) -> str:
    """Advice on how to get a missing package of an extra. It needs a checkout, since no release is on PyPI."""
    return f"install it in the checkout of lopa-ray: pip install -e '.[{extra}]'"
