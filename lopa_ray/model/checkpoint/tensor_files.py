"""Reading a checkpoint's tensors one at a time, with errors that name the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.folder_contents import lacking
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.config_json.json_file import read_json

_UNREADABLE = (SafetensorError, OSError, ValueError, RuntimeError)
TENSORS_PER_OPENING = 64
"""So many tensors are read before a file is opened anew: experts come by the thousand, and headers are as long."""

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

GIVEN = Path("update_weights")
"""In the place of a file, of tensors that are in none."""

FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """Each tensor's file, its shape, and its type in safetensors' words. A file is open for one read at a time."""

    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    given: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that are in no file, [...] on the CPU."""

    def with_given(self, tensors: Mapping[str, Tensor]) -> TensorFiles:
        """The same with `tensors` (name → [...] in any dtype) in the place of those in files."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        files, dtypes = dict.fromkeys(tensors, GIVEN), dict.fromkeys(tensors, "given")
        return TensorFiles(
            {**self.files, **files}, {**self.shapes, **shapes}, {**self.dtypes, **dtypes}, tensors
        )

    @staticmethod
    def scan(files: list[Path], index: Mapping[str, Path] | None = None) -> TensorFiles:
        """Read the headers of `files`. A tensor that `index` lists in one file is not taken from another file. Raises
        `CheckpointError` for a file that cannot be used, and for a tensor in two files that is not in `index`."""
        listed = index or {}
        file_of: dict[str, Path] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        dtypes: dict[str, str] = {}
        if missing := [file for file in files if not file.is_file()]:
            more = f", and {len(missing) - 1} more of {len(files)} are missing" if len(missing) > 1 else ""
            raise CheckpointError(f"{missing[0]}: no such file{more}; download the checkpoint again")
        for file in files:
            try:
                with safe_open(file, framework="pt") as handle:
                    names = [name for name in tuple(handle.keys()) if listed.get(name, file) == file]
                    slices = {name: handle.get_slice(name) for name in names}
                    shapes_in_file = {name: tuple(part.get_shape()) for name, part in slices.items()}
                    dtypes |= {name: part.get_dtype() for name, part in slices.items()}
            except _UNREADABLE as error:
                raise _damaged_file(file, error) from None
            for name in shapes_in_file.keys() & file_of.keys():
                raise CheckpointError(
                    f"{file}: tensor {name} is also in {file_of[name].name}; a tensor may be in one file "
                    "only: remove the file that does not belong there"
                )
            file_of |= dict.fromkeys(shapes_in_file, file)
            shapes |= shapes_in_file
        return TensorFiles(file_of, shapes, dtypes)

    def read_tensor(self, name: str, dtypes: tuple[torch.dtype, ...] = FLOAT_DTYPES) -> Tensor:
        """The one tensor; see `read_tensors`."""
        return next(self.read_tensors([name], dtypes))[1]

    def read_tensors(
        self, names: Iterable[str], dtypes: tuple[torch.dtype, ...] = FLOAT_DTYPES
    ) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of each of `names`, in order, on the CPU in its stored shape [...] and dtype, one of `dtypes`.
        Files are opened anew after some tensors: a mapping that stays open keeps every page it has touched in the
        process, which would double the memory of loading a large checkpoint. Raises CheckpointError."""
        for file, group in groupby(names, key=self.files.__getitem__):
            while batch := list(islice(group, TENSORS_PER_OPENING)):
                yield from self._read_batch(file, batch, dtypes)

    def _read_batch(
        self, file: Path, names: list[str], dtypes: tuple[torch.dtype, ...]
    ) -> Iterator[tuple[str, Tensor]]:
        name = None
        try:
            with ExitStack() as opened:
                read = self.given.__getitem__
                if file != GIVEN:
                    read = opened.enter_context(safe_open(file, framework="pt")).get_tensor
                for name in names:
                    tensor = read(name)
                    if tensor.dtype not in dtypes:
                        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
                        raise CheckpointError(
                            f"{file}: tensor {name} is stored as {tensor.dtype}; allowed there: {allowed}; use a "
                            "checkpoint that is not quantised, or one that was saved here, with its config.json"
                        )
                    yield name, tensor
        except _UNREADABLE as error:
            raise _damaged_file(file, error, name) from None


def _damaged_file(file: Path, error: Exception, tensor: str | None = None) -> CheckpointError:
    what = f"tensor {tensor} cannot be read" if tensor else "not a whole safetensors file"
    return CheckpointError(
        f"{file}: {what} ({error}); the file is truncated, damaged or of another format: download it again"
    )


def find_tensors(folder: Path, source: WeightSource = AT_START) -> TensorFiles:
    """The weight files of `folder`, or what `source` has in their place: one file, or the shards that its index lists;
    none if there are none and `source` has tensors. Raises `CheckpointError`."""
    folder = source.folder or folder
    has_files = (folder / WEIGHTS).exists() or (folder / INDEX).exists()
    files = _find_files(folder) if has_files or not source.tensors else TensorFiles({}, {}, {})
    return files.with_given(source.tensors) if source.tensors else files


def _find_files(folder: Path) -> TensorFiles:
    if (folder / WEIGHTS).exists():
        return TensorFiles.scan([folder / WEIGHTS])
    if not (folder / INDEX).exists():
        raise lacking(folder, f"{WEIGHTS}, or shards and {INDEX}")
    index = folder / INDEX
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(
            f"{index}: got weight_map = {listed!r}, need tensor names and files; download it again"
        )
    for name, file in listed.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index}: tensor {name} is listed in {file!r}; need a file name in this folder"
            )
    places = {name: folder / file for name, file in listed.items()}
    tensor_files = TensorFiles.scan(sorted(set(places.values())), places)
    for name, file in listed.items():
        if name not in tensor_files.files:
            raise CheckpointError(
                f"{folder / file}: tensor {name} is not in it, though {INDEX} lists it there; "
                f"shard and index are of different versions: download both again"
            )
    return tensor_files
