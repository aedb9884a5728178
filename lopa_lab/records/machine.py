"""Machine: what a run's process ran on, and with which packages; the checkout that the code runs from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from lopa_ray.execution.device import cpu_model

PACKAGES = ("torch", "transformers", "ray", "numpy")
"""Packages whose version can change times or tokens."""


class Machine(BaseModel):
    """The machine of the process that asked. Workers on other nodes may have other machines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    """Model name; the architecture where the system does not tell it."""
    cores: int
    """Logical cores that the process may use."""
    memory_bytes: int | None
    """Physical memory; None where the system does not tell it."""
    accelerators: tuple[str, ...]
    """Names of accelerators that the process sees, one per device; empty for runs on the CPU."""
    os: str
    python: str
    packages: dict[str, str]
    """Version of each of `PACKAGES` that is installed."""

    @classmethod
    def here(cls, device: str = "cpu") -> Machine:
        """This machine. torch is imported only if `device` (as in `model.device`) is not the CPU."""
        return cls(
            cpu=cpu_model(),
            cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
            memory_bytes=_memory_bytes(),
            accelerators=() if device == "cpu" else _accelerator_names(device),
            os=platform.platform(),
            python=platform.python_version(),
            packages=package_versions(PACKAGES),
        )

    @property
    def hardware(self) -> str:
        """Processor, cores and accelerators."""
        accelerators = f", {', '.join(self.accelerators)}" if self.accelerators else ""
        return f"{self.cpu}, {self.cores} cores{accelerators}"

    @property
    def package_list(self) -> str:
        """Packages with their versions."""
        return ", ".join(f"{name} {version}" for name, version in sorted(self.packages.items()))

    def describe(self, version: str) -> str:
        """Hardware and versions in a line; `version` is lopa-ray's."""
        return f"{self.hardware}; lopa-ray {version}, {self.package_list}, Python {self.python}"


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """The installed version of each package; packages that are not installed are left out."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _memory_bytes() -> int | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _accelerator_names(device: str) -> tuple[str, ...]:
    import torch

    module = torch.get_device_module(device)
    return tuple(module.get_device_name(index) for index in range(module.device_count()))


def checkout_commit() -> str | None:
    """The commit of the checkout that this package lies in, with `+changes` if tracked files differ from it.

    None for an installed package, or without git.
    """
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    commit = _git(git, root, "rev-parse", "HEAD")
    changes = _git(git, root, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else commit + ("+changes" if changes else "")


def _git(git: str, root: Path, *arguments: str) -> str | None:
    """The output of git, or None if it fails: there is no commit yet, or it refuses the folder's owner."""
    done = subprocess.run([git, "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
