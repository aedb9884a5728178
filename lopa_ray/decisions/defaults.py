"""Settings and temperatures of decisions in a checkpoint's `decisions.json`, which `lopa eval decisions` writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, get_args

from lopa_ray.config.decision_settings import DecisionSettings, DecisionType
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.model.config_json.json_file import read_json

DECISIONS = "decisions.json"

MAX_TEMPERATURE = 1000.0


class DecisionDefaults(NamedTuple):
    settings: DecisionSettings
    temperatures: Mapping[DecisionType, float]
    """Temperatures by which log-likelihoods of each type of questions are divided; 1 for types that are not there."""


def temperature_key(decision_type: DecisionType) -> str:
    return f"{decision_type}_temperature"


def read_decision_defaults(folder: Path) -> DecisionDefaults:
    """The defaults that the checkpoint in `folder` recommends. Raises CheckpointError, which names the file."""
    file = folder / DECISIONS
    values = read_json(file) if file.exists() else {}
    keys: dict[DecisionType, str] = {kind: temperature_key(kind) for kind in get_args(DecisionType)}
    temperatures = {kind: values.pop(key) for kind, key in keys.items() if key in values}
    for kind, value in temperatures.items():
        if not (isinstance(value, int | float) and 0 < value <= MAX_TEMPERATURE):
            raise CheckpointError(
                f"{file}: {keys[kind]}: got {value!r}; allowed: numbers above 0, up to "
                f"{MAX_TEMPERATURE:g}; correct it"
            )
    try:
        return DecisionDefaults(DecisionSettings(**values), temperatures)
    except SettingsError as error:
        raise CheckpointError(f"{file}: {error}; correct it") from None
