"""Folders of the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
GOLDEN = TESTS / "golden"
MODELS = GOLDEN / "models"
DATA = TESTS / "data"
PROGRAMS = TESTS / "programs"
TASKS = DATA / "tasks"
"""Tasks of lm-evaluation-harness."""
