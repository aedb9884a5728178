"""LoRA adapters merge as PEFT defines them; what would change the result otherwise is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint import lora
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.native_implementation import load_model
from support.paths import GOLDEN

MODEL = GOLDEN / "models" / "dream-tiny-4l"
LAYER = "model.layers.{}.self_attn.{}_proj"

torch.set_num_threads(1)


def half(module: str, which: str) -> str:
    return f"base_model.model.{module}.lora_{which}.weight"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "lora" / "dream-tiny-4l-r4", tmp_path / "adapter"))


def configure(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit(adapter: Path, changes: dict[str, torch.Tensor | None]) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


def merged(adapter: Path, tmp_path: Path, base: Path) -> dict[str, torch.Tensor]:
    """The published tensors after merging."""
    model = load_model(base, dtype=torch.float32, device="cpu", lora=adapter)
    save_model(model, tmp_path / "merged", dtype=torch.float32)
    return load_file(tmp_path / "merged" / "model.safetensors")


def refused(adapter: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_model(MODEL, dtype=torch.float32, device="cpu", lora=adapter)
    for part in parts:
        assert part in str(caught.value)


def check_scales(
    adapter: Path, tmp_path: Path, scale_of: dict[str, float], default: float, folder: Path = MODEL
) -> None:
    """Every published tensor is W + scale B A, with the scale of its module."""
    base, update = load_file(folder / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    result = merged(adapter, tmp_path, folder)
    assert result.keys() == base.keys()
    for name, weight in base.items():
        module = name.removesuffix(".weight")
        if half(module, "A") in update:
            scale = scale_of.get(module, default)
            weight = weight + scale * (update[half(module, "B")] @ update[half(module, "A")])
        torch.testing.assert_close(result[name], weight, atol=1e-6, rtol=1e-5)


def test_the_scale_is_alpha_over_r(adapter: Path, tmp_path: Path) -> None:
    check_scales(adapter, tmp_path, {}, 8 / 4)


def test_the_scale_of_rslora_is_alpha_over_the_root_of_r(adapter: Path, tmp_path: Path) -> None:
    configure(adapter, use_rslora=True)
    check_scales(adapter, tmp_path, {}, 8 / math.sqrt(4))


def test_patterns_set_rank_and_alpha_of_single_modules(adapter: Path, tmp_path: Path) -> None:
    first, second = LAYER.format(0, "q"), LAYER.format(1, "v")
    edit(adapter, {half(first, "A"): torch.randn(2, 64), half(first, "B"): torch.randn(64, 2)})
    configure(
        adapter, rank_pattern={first: 2}, alpha_pattern={r"layers\.1\.self_attn\.v_proj": 20, "k_proj": 4}
    )
    scales = {first: 8 / 2, second: 20 / 4} | {LAYER.format(i, "k"): 4 / 4 for i in range(4)}
    check_scales(adapter, tmp_path, scales, 8 / 4)


def test_merging_is_done_in_fp32(adapter: Path) -> None:
    """The sum is rounded to the model's dtype once, not each term of it."""
    wide = load_model(MODEL, dtype=torch.float32, device="cpu", lora=adapter)
    narrow = load_model(MODEL, dtype=torch.bfloat16, device="cpu", lora=adapter)
    for (name, a), b in zip(wide.named_parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b), name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("modules_to_save", ["lm_head"]),
        ("layers_to_transform", [0]),
        ("peft_type", "LOHA"),
        ("init_lora_weights", "pissa"),
        ("a_setting_of_the_future", {"on": 1}),
    ],
)
def test_unsupported_settings_are_refused_by_name(adapter: Path, key: str, value: object) -> None:
    configure(adapter, **{key: value})
    refused(adapter, "adapter_config.json", f"{key} = {value!r}")


@pytest.mark.parametrize(
    ("key", "value"),
    [("lora_alpha", 0), ("lora_alpha", "8"), ("rank_pattern", 3), ("alpha_pattern", {"(": 1})],
)
def test_bad_numbers_and_patterns_are_refused(adapter: Path, key: str, value: object) -> None:
    configure(adapter, **{key: value})
    refused(adapter, "adapter_config.json", key)


@pytest.mark.medium
@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_a_pattern_has_a_limit_of_time(adapter: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(lora, "MATCH_S", 0.3)
    configure(adapter, **{key: {r"(([a-z]|\w|.)+)+[a-z][0-9](?=[a-z])": 1}})
    refused(adapter, "adapter_config.json", f"{key} patterns that take too long")


def test_the_rank_must_match_the_tensors(adapter: Path) -> None:
    configure(adapter, r=8)
    refused(adapter, "adapter_model.safetensors", "lora_A.weight [4, 64]", "rank 8")


def test_targets_must_be_in_the_model(adapter: Path) -> None:
    module = LAYER.format(4, "q")
    edit(adapter, {half(module, "A"): torch.ones(4, 64), half(module, "B"): torch.ones(64, 4)})
    refused(adapter, "adapter_model.safetensors", half(module, "A"), "not a linear layer of the model")


def test_targets_must_fit_the_model(adapter: Path) -> None:
    edit(adapter, {half(LAYER.format(2, "k"), "B"): torch.ones(64, 4)})
    refused(adapter, "adapter_model.safetensors", half(LAYER.format(2, "k"), "B"), "[32, 64]")


def test_every_tensor_must_be_half_of_a_pair(adapter: Path) -> None:
    edit(adapter, {"base_model.model.lm_head.weight": torch.ones(2, 2)})
    refused(adapter, "adapter_model.safetensors", "base_model.model.lm_head.weight")
    edit(adapter, {"base_model.model.lm_head.weight": None, half(LAYER.format(2, "k"), "B"): None})
    refused(adapter, "adapter_model.safetensors", half(LAYER.format(2, "k"), "B"), "missing")


def test_every_listed_target_must_have_its_tensors(adapter: Path) -> None:
    module = LAYER.format(3, "o")
    edit(adapter, {half(module, which): None for which in "AB"})
    refused(adapter, "adapter_model.safetensors", half(module, "A"), "target_modules")


def test_broken_or_missing_files_are_named(adapter: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere"))
    weights = adapter / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    refused(adapter, str(weights), "truncated, damaged")
    weights.unlink()
    refused(adapter, f"{adapter}: got adapter_config.json; need {weights.name}")
    (adapter / "adapter_config.json").write_text("{")
    refused(adapter, "adapter_config.json", "cannot be read as JSON")
    (adapter / "adapter_config.json").write_text("{}")
    refused(adapter, "adapter_config.json", "no peft_type")


def test_an_adapter_for_llada_merges_under_its_names(llada_adapter: Path, tmp_path: Path) -> None:
    check_scales(llada_adapter, tmp_path, {}, 8 / 4, GOLDEN / "models" / "llada-tiny-3l")
