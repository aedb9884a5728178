"""Places that hold no readable weights: the message names what is there, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError
from support.checkpoints import refused, shard

WEIGHTS = "model.safetensors"


def message_of(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        LocalEngine.from_pretrained(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        *(
            (name, "weights are read from safetensors alone")
            for name in ("pytorch_model.bin", "consolidated.00.pth")
        ),
        ("model-q4.gguf", "GGUF is not read: name a folder, or a name on the Hugging Face Hub"),
        ("M.Q4.GGUF", "GGUF is not read"),
        ("adapter_model.bin", "model.lora (--lora)"),
        ("diffusion_pytorch_model.safetensors", "is not read by that name"),
        ("model-00001-of-00002.safetensors", "add the files that belong to it"),
        ("adapter_model.safetensors", "model.lora (--lora)"),
        ("README.md", "add what is missing"),
    ],
)
def test_files_of_another_name_or_format(checkpoint: Path, name: str, advice: str) -> None:
    (checkpoint / WEIGHTS).rename(checkpoint / name)
    for need in ("model.safetensors.index.json", "config.json"):
        message = message_of(checkpoint)
        assert (
            f"{checkpoint}: got " in message
            and name in message
            and f"need {need}" in message.replace("need model.safetensors, or shards and ", "need ")
        )
        assert advice in message or (need == "config.json" and name.endswith("safetensors"))
        (checkpoint / "config.json").unlink(missing_ok=True)


def test_folders_without_files(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / WEIGHTS).unlink()
    assert "got config.json, generation_config.json; need" in message_of(checkpoint)
    (empty := tmp_path / "empty").mkdir()
    assert "got an empty folder; need config.json" in message_of(empty)
    above = checkpoint.rename(empty / "inner").parent
    assert f"got inner/; need config.json; name the folder in it, {empty / 'inner'}" in message_of(above)


def test_a_repository_in_the_cache_of_the_hub(checkpoint: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    (repository / "snapshots").mkdir(parents=True)
    commit = checkpoint.rename(repository / "snapshots" / "0123")
    assert f"name the folder in it, {commit}" in message_of(repository)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "generation_config.json", "tokenizer.json"])
def test_links_of_a_cache_that_has_lost_its_blobs(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink(missing_ok=True)
    (checkpoint / name).symlink_to("../../blobs/0123")
    message = message_of(checkpoint)
    assert name in message and "a link to ../../blobs/0123, which is gone; download" in message


def test_shards_that_the_index_lists_and_the_folder_lacks(checkpoint: Path) -> None:
    files = sorted(set(shard(checkpoint).values()))
    for file in files[1:]:
        file.unlink()
    refused(checkpoint, f"{files[1]}: no such file")
    files[0].unlink()
    refused(checkpoint, f"{files[0]}: no such file, and {len(files) - 1} more of {len(files)} are missing")
