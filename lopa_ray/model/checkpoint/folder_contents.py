"""Describes what is in place of a readable checkpoint, often weights in another format, and what to do."""

from __future__ import annotations

from pathlib import Path

from lopa_ray.errors import CheckpointError

_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_OTHER_FORMATS = (".bin", ".ckpt", ".h5", ".msgpack", ".npz", ".onnx", ".ot", ".pt", ".pth")
_WEIGHTS = (".safetensors", ".gguf", *_OTHER_FORMATS)
_OF_TRAINING = ("optimizer", "scheduler", "rng_state", "training_args.bin")
"""Beginnings of names of files in other formats that hold no weights."""
SETTINGS_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
_MAX_NAMES = 6
_HUB = "a name on the Hugging Face Hub (org/name or org/name@revision)"


def require_folder(path: str | Path, need: str, *, hub: bool = True) -> None:
    """Raise CheckpointError unless `path` is a folder. `need`: what it is to be, "a checkpoint: a folder with ...";
    `hub`: a name on the Hub would do as well."""
    place = Path(path)
    if place.is_dir():
        return
    got = "this is a file" if place.is_file() else "no such folder"
    if _is_broken(place):
        got = f"this is {_broken(place)}"
    elif place.suffix.lower() == ".gguf":
        got += "; GGUF is not read, only safetensors"
    elif place.is_file() and (place.parent / "config.json").is_file():
        got += f"; name the folder that it is in, {place.parent}"
    raise CheckpointError(f"{path}: {got}; need {need}" + f", or {_HUB}" * hub)


def refuse_broken_links(folder: Path) -> None:
    """Raise CheckpointError for a file of settings or of a tokenizer that is a link to nothing, as in a cache of the
    Hub that has lost files: without it the model would not be the same."""
    for entry in sorted(folder.iterdir()):
        if _is_broken(entry) and any(map(entry.match, SETTINGS_FILES)):
            raise CheckpointError(f"{entry}: this is {_broken(entry)}")


def lacking(folder: Path, need: str) -> CheckpointError:
    """The error for a folder that has none of the files `need`, with what it has, and what to do."""
    entries = sorted(folder.iterdir(), key=lambda entry: (entry.suffix.lower() not in _WEIGHTS, entry.name))
    names = [entry.name + "/" * entry.is_dir() + " (a broken link)" * _is_broken(entry) for entry in entries]
    if len(names) > _MAX_NAMES:
        names[_MAX_NAMES - 1 :] = [f"{len(names) - _MAX_NAMES + 1} more"]
    got = ", ".join(names) or "an empty folder"
    return CheckpointError(f"{folder}: got {got}; need {need}; {_advice(entries, need)}")


def _advice(entries: list[Path], need: str) -> str:
    wants_weights = ".safetensors" in need
    safetensors = [entry.name for entry in entries if entry.suffix.lower() == ".safetensors"]
    for entry in entries:
        if _is_broken(entry):
            return f"{entry.name} is {_broken(entry)}"
        if entry.name in _ADAPTER_FILES and need not in _ADAPTER_FILES:
            return (
                f"this is an adapter ({entry.name}): name it in model.lora (--lora), and the checkpoint it adapts in "
                "model.path (--model)"
            )
    if safetensors and wants_weights:
        return f"{safetensors[0]} is not read by that name: add the files that belong to it, or rename it"
    for entry in entries if not safetensors else ():
        if entry.suffix.lower() == ".gguf":
            return f"GGUF is not read: name a folder, or {_HUB}, with safetensors"
        if entry.suffix.lower() in _OTHER_FORMATS and not entry.name.startswith(_OF_TRAINING):
            return (
                f"weights are read from safetensors alone, not from {entry.name}: save the model with transformers' "
                "save_pretrained, or name a folder or repository with safetensors"
            )
    for entry in entries:
        # The cache of the Hub has a repository's files in snapshots/COMMIT.
        for folder in (entry, *(sorted(entry.glob("*")) if entry.name == "snapshots" else ())):
            if (folder / need).is_file():
                return f"name the folder in it, {folder}"
    alone = "weights are read from safetensors alone: " if wants_weights else ""
    return f"{alone}add what is missing, or name another folder or repository"


def _is_broken(entry: Path) -> bool:
    return entry.is_symlink() and not entry.exists()


def _broken(entry: Path) -> str:
    return f"a link to {entry.readlink()}, which is gone; download the checkpoint again"
