"""The table of experiments. To add one, add a line here and a module of that name with an `EXPERIMENT`."""

from __future__ import annotations

import importlib

from lopa_lab.experiments.run.experiment import Experiment
from lopa_ray.errors import SettingsError

EXPERIMENTS = {
    "branches": "What do more branches per step give, and what do they cost?",
    "tfo": "How much does the filling order matter, and is LoPA's good?",
    "ablation": "What does each part of LoPA contribute?",
    "predictor": "Which branch confidence predicts best, and decodes best?",
    "budget": "Does an adaptive number of branches beat a fixed one?",
    "sync": "What do commits and control cost in a step on several workers?",
    "parallelism": "Are workers better spent on one request, or on one each?",
    "overhead": "What does lookahead cost on one device?",
    "open-ended": "How do decoders write text without a checkable answer?",
    "beyond": "Does another lookahead beat the published one?",
    "verified": "What do verified drafts give, and what do they cost?",
    "speculation": "What does it give to draft in the pass that verifies?",
}
"""Name → the question that it answers. Help and findings have this order."""


def load_experiment(name: str) -> Experiment:
    """The experiment of that name. Raises SettingsError if there is none."""
    if name not in EXPERIMENTS:
        raise SettingsError(f"experiment: got {name!r}; allowed: {', '.join(EXPERIMENTS)}")
    module = importlib.import_module(f"lopa_lab.experiments.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment
