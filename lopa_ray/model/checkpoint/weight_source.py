"""WeightSource: where a model's weights are when they have changed since its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from lopa_ray.errors import SettingsError
from lopa_ray.model.checkpoint.config_files import ADAPTER_CONFIG
from lopa_ray.model.checkpoint.folder_contents import require_folder


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The weights of one version. Without anything they are those of the checkpoint that the model was started with."""

    version: int = 0
    folder: Path | None = None
    """Has all weights, in the place of the checkpoint and its adapter."""
    loras: tuple[Path, ...] = ()
    """PEFT adapters over the weights that the model was started with."""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """Published name → the tensor [...] on the CPU in the place of the one that is there, or a reference to an object
    that has it."""

    def next(self, source: str | Path | Mapping[str, Any], version: int | None) -> Self:
        """The next version: from a folder, of a checkpoint or of an adapter, or with the tensors of a mapping in the
        place of these. Raises CheckpointError without the folder, SettingsError for another version than a later one,
        and for a source of another kind."""
        version = self.version + 1 if version is None else version
        if not isinstance(version, int) or isinstance(version, bool) or version <= self.version:
            raise SettingsError(
                f"version: got {version!r}, and the weights have version {self.version}; use a whole number above it",
                setting="version",
            )
        if isinstance(source, Mapping) and source:
            return replace(self, version=version, tensors={**self.tensors, **source})
        if not isinstance(source, str | Path):
            raise SettingsError(
                f"source: got {type(source).__name__} {source!r:.80}; use a folder, or a mapping of tensors by their "
                "names in the checkpoint",
                setting="source",
            )
        require_folder(source, "weights: the folder of a checkpoint or of a PEFT adapter")
        folder = Path(source).absolute()
        is_adapter = (folder / ADAPTER_CONFIG).exists()
        return type(self)(version, None if is_adapter else folder, (folder,) if is_adapter else ())


AT_START = WeightSource()
