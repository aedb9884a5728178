"""The experiments: all modules of this folder whose first line has a command and its question."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from lopa_lab.experiments.run.experiment import Experiment
from lopa_ray.errors import SettingsError

_FIRST_LINE = re.compile(r'"""`lopa experiment (\S+)`: (.+\?)')

# Read and not imported: help does without what experiments import.
_FILES = sorted(Path(__file__).parent.glob("*.py"))
_FOUND = (_FIRST_LINE.match(file.read_text(encoding="utf-8")) for file in _FILES)

EXPERIMENTS = {found[1]: found[2] for found in _FOUND if found}
"""Name → the question that it answers."""


def load_experiment(name: str) -> Experiment:
    """The experiment of that name. Raises SettingsError if there is none."""
    if name not in EXPERIMENTS:
        raise SettingsError(f"experiment: got {name!r}; allowed: {', '.join(EXPERIMENTS)}")
    module = importlib.import_module(f"lopa_lab.experiments.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment
