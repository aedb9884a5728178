"""Folders of the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
MODELS = GOLDEN / "models"
DATA = ROOT / "tests" / "data"
PROGRAMS = ROOT / "tests" / "programs"
TASKS = DATA / "tasks"
"""Tasks of lm-evaluation-harness."""
