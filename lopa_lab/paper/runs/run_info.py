"""RunInfo: everything that a run's figures depend on, for its reports."""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from lopa_lab.records.machine import Machine


class RunInfo(BaseModel):
    """One run of one task with one configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    title: str
    """What the paper calls the task."""
    shots: int = Field(ge=0)
    metric: str
    """The score that the paper reports, among those of the records."""
    config_name: str
    """Preset or file that the settings come from."""
    settings: dict[str, dict[str, Any]]
    """All of them by section, as `Config.as_dict` gives them."""
    model: str
    """Hub name with its commit, or folder."""
    chat: bool
    """Whether prompts went through the model's chat template."""
    limit: int | None = Field(default=None, ge=1)
    """Only so many problems, the first ones of the data, were to be decoded."""
    problems: int
    """Problems that the data has."""
    versions: dict[str, str]
    """What scores depend on: lopa-ray, packages, task definition, data."""
    machine: Machine
    command: tuple[str, ...]
    started: AwareDatetime
    """In UTC."""
    concurrency: int = Field(ge=1)
    """Problems in flight together."""
    commit: str | None = None
    """The commit of the checkout that the code runs from (`checkout_commit`)."""

    @property
    def command_line(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.command)
