"""The table of experiments. To add one, add a line here and a module of that name with an `EXPERIMENT`."""

from __future__ import annotations

import importlib

from cluster.experiments.run.experiment import Experiment
from lopa_ray.errors import SettingsError

EXPERIMENTS = {
    "branches": "Do more branches per step give more TPF, and what do they cost in score?",
    "tfo": "How much does the token filling order decide, and how good is LoPA's among random ones?",
    "ablation": "What does each part of LoPA contribute?",
    "predictor": "Which branch confidence predicts accepted tokens best, and does it decode best?",
    "budget": "Does an adaptive number of branches beat a fixed one at equal forwards?",
    "open-ended": "What do decoders make of text without a checkable answer?",
}
"""Name → the question that it answers. The order is that of help and findings."""


def load_experiment(name: str) -> Experiment:
    """The experiment of that name. Raises SettingsError if there is none."""
    if name not in EXPERIMENTS:
        raise SettingsError(f"experiment: got {name!r}; allowed: {', '.join(EXPERIMENTS)}")
    module = importlib.import_module(f"cluster.experiments.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment
