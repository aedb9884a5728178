"""Where a checkpoint's mask token comes from, in order: configuration, family, tokenizer, setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.model_config import ModelConfig
from support.checkpoints import edit_json
from support.paths import MODELS
from support.tokenizer_folders import write_whole

FAMILY_MASKS = {"sdar-moe-tiny-3l": 151669, "llada2-tiny-3l": 156895}
IMPLEMENTATIONS = ("native", "transformers")


class Folder:
    """The configuration of a published checkpoint without its mask token, and what is read of it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        (path / "config.json").write_text((MODELS / name / "config.json").read_text())
        (path / "generation_config.json").write_text("{}")
        self.edit(mask_token_id=...)

    def edit(self, **changes: Any) -> None:
        edit_json(self.path / "config.json", **changes)

    def edit_generation(self, **changes: Any) -> None:
        edit_json(self.path / "generation_config.json", **changes)

    def read(self, implementation: str, **settings: Any) -> ModelConfig:
        model = {"path": str(self.path), "implementation": implementation, **settings}
        return ModelSpec.read(Config.parse({"model": model})).model


@pytest.mark.parametrize("absent", [..., None], ids=["absent", "null"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", FAMILY_MASKS)
def test_each_source_of_the_mask_token_counts_where_those_before_have_none(
    name: str, implementation: str, absent: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path, name)
    of_family = FAMILY_MASKS[name]
    of_tokenizer = write_whole(tmp_path) + 3
    setting = {"mask_token_id": 5}

    folder.edit(mask_token_id=17, vocab_size=of_family + 1)
    folder.edit_generation(mask_token_id=16)
    assert folder.read(implementation, **setting).mask_token_id == 17
    folder.edit(mask_token_id=absent)
    assert folder.read(implementation, **setting).mask_token_id == 16
    folder.edit_generation(mask_token_id=absent)
    assert folder.read(implementation, **setting).mask_token_id == of_family
    # From here on the vocabulary has no such id, and then not the tokenizer's either.
    folder.edit(vocab_size=of_family)
    assert folder.read(implementation, **setting).mask_token_id == of_tokenizer
    folder.edit(vocab_size=of_tokenizer, eos_token_id=126)
    assert folder.read(implementation, **setting).mask_token_id == 5
    with pytest.raises(CheckpointError, match=r"has a mask token.*set model\.mask_token_id to one in 0"):
        folder.read(implementation)
    with pytest.raises(CheckpointError, match=r"has a mask token.*set model\.mask_token_id to one in 0"):
        folder.read(implementation, mask_token_id=of_tokenizer)


def test_a_named_mask_token_outside_the_vocabulary_is_a_mistake_in_the_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "llada2-tiny-3l")
    folder.edit(mask_token_id=128)
    with pytest.raises(CheckpointError, match=r"mask_token_id = 128.*0\.\.127"):
        folder.read("native", mask_token_id=5)


@pytest.mark.parametrize("absent", [..., None], ids=["absent", "null"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_llada2_ends_at_padding(implementation: str, absent: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path, "llada2-tiny-3l")
    folder.edit(mask_token_id=127, pad_token_id=99, eos_token_id=absent)
    assert folder.read(implementation).eos_token_id == 99


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("of_config", "of_generation", "ends"),
    [
        (9, ..., (9,)),
        ([9, 8], [8, 7], (9, 8, 7)),
        (None, [8, 7], (8, 7)),
        (..., 8, (8,)),
    ],
)
def test_the_first_end_token_is_eos_and_the_others_stop(
    implementation: str, of_config: Any, of_generation: Any, ends: tuple[int, ...], tmp_path: Path
) -> None:
    folder = Folder(tmp_path, "sdar-tiny-3l")
    folder.edit(mask_token_id=127, eos_token_id=of_config)
    folder.edit_generation(eos_token_id=of_generation)
    model = folder.read(implementation)
    assert (model.eos_token_id, *model.stop_token_ids) == ends


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("of_config", "of_generation"), [([9, 127], ...), (127, ...), (9, [9, 127])])
def test_the_mask_token_cannot_end_an_answer(
    implementation: str, of_config: Any, of_generation: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path, "sdar-tiny-3l")
    folder.edit(mask_token_id=127, eos_token_id=of_config)
    folder.edit_generation(eos_token_id=of_generation)
    with pytest.raises(CheckpointError, match=r"127 in eos_token_id.*mask token"):
        folder.read(implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("key", ["model_type", "architectures"])
def test_what_a_file_without_a_type_is_read_as_is_said_once(
    implementation: str, key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder(tmp_path, "dream-tiny-2l")
    folder.edit(mask_token_id=127)
    folder.read(implementation)
    assert not caplog.records
    folder.edit(**{key: None})
    for _ in range(2):
        folder.read(implementation)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{tmp_path / 'config.json'}: it names no {key}" in record.getMessage()
    assert "model_type 'Dream' with architectures ['DreamModel']" in record.getMessage()
