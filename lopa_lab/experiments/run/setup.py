"""Setup: what all points of a run have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

FIT_SEED = 101
"""Seed of the problems that `lopa experiment fit-drafts` decodes: experiments are about others."""


class Setup(BaseModel):
    """Settings that all points of a run have in common. A run can be continued only with the same setup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problems: int
    seed: int
    problem_texts: str
    """Fingerprint of the problems, which another version of the package may make otherwise."""
    model: str
    """Folder, or name on the Hub with its commit."""
    weights: str | None
    """`weights_fingerprint` of the files of a folder; None for a model on the Hub, which its commit pins."""
    settings: dict[str, dict[str, Any]]
    """Settings by section, as the configuration and the command line give them."""
    timed_on: str | None = None
    """Hardware, for experiments that measure times."""
