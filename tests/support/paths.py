"""Folders of the checkout, and that of the programs of this Python's environment."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # tests/gpu/pytest.ini names the folder of this package by ".."
TESTS = ROOT / "tests"
GOLDEN = TESTS / "golden"
MODELS = GOLDEN / "models"
DATA = TESTS / "data"
PROGRAMS = TESTS / "programs"
TASKS = DATA / "tasks"
"""Tasks of lm-evaluation-harness."""
BIN = Path(sys.executable).parent
