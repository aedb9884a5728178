"""Settings of decisions in a checkpoint's `decisions.json`, which `lopa eval decisions` writes."""

from __future__ import annotations

from pathlib import Path

from lopa_ray.config.decision_settings import DecisionSettings
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.model.json_file import read_json

DECISIONS = "decisions.json"


def read_decision_defaults(folder: Path) -> DecisionSettings:
    """The settings that the checkpoint in `folder` recommends. Raises CheckpointError, which names the file."""
    file = folder / DECISIONS
    try:
        return DecisionSettings(**read_json(file)) if file.exists() else DecisionSettings()
    except SettingsError as error:
        raise CheckpointError(f"{file}: {error}; correct it") from None
