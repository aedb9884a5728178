"""What transformers computes and this project does not is refused by name, and so are wrong tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_ray.errors import CheckpointError, LopaError, SettingsError
from lopa_ray.model.transformers_implementation.trial import try_forward
from lopa_ray.model.transformers_models import config as transformers_config
from support.checkpoints import edit_json, edit_tensors, shard
from support.transformers_checkpoints import runner_of, save_checkpoint

torch.set_num_threads(1)

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"


def refused(folder: Path, *parts: str, error: type[LopaError] = CheckpointError, **model: Any) -> None:
    """A runner cannot be made, for one reason whose message has every part."""
    with pytest.raises(error) as caught:
        runner_of(folder, **model)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "changes", "parts"),
    [
        ("mistral", {"sliding_window": 16}, ["sliding_window = 16"]),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, ["attn_logit_softcapping = 50.0"]),
        ("granite", {"logits_scaling": 8.0}, ["logits_scaling = 8.0"]),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ["rope_type = 'dynamic'"]),
        ("gemma3", {}, ["text_config"]),
        ("mamba", {}, ["layer_types = ['linear_attention']"]),
        ("t5", {}, ["model_type 't5'", "'Dream'", "transformers_models/families.py"]),
    ],
)
def test_configurations_of_other_models_are_refused(
    model_type: str, changes: dict, parts: list[str], tmp_path: Path
) -> None:
    save_checkpoint("llama", tmp_path)
    edit_json(tmp_path / "config.json", architectures=..., model_type=model_type, **changes)
    refused(tmp_path, str(tmp_path / "config.json"), *parts)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"architectures": ["DreamModel"]},
            ["['DreamModel']", "runs model_type 'llama' as ['LlamaForCausalLM']"],
        ),
        ({"hidden_size": "64"}, ["cannot read it as llama", "hidden_size"]),
    ],
)
def test_bad_configurations_are_refused(changes: dict, parts: list[str], tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    refused(tmp_path, "config.json", *parts)


def test_native_alone_refuses_what_transformers_has(tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    refused(tmp_path, "model_type = 'llama'", "model.implementation to auto", implementation="native")


# What the configuration does not tell


@pytest.mark.medium
@pytest.mark.parametrize(
    ("model_type", "changes", "parts"),
    [
        # Attention sinks.
        (
            "gpt_oss",
            {"layer_types": ["full_attention"] * 3, "num_local_experts": 4},
            ["asks for s_aux = [4]"],
        ),
        # Attention twice per layer, and a difference.
        ("diffllama", {}, ["those that call attention are [0, 0, 1, 1, 2, 2]"]),
        # Values of another width than keys.
        (
            "deepseek_v3",
            {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "num_key_value_heads": 4},
            ["layer 0"],
        ),
        # Modules that hand nothing on to attention functions.
        ("stablelm", {}, ["does not pass the call's arguments on"]),
    ],
)
def test_other_attention_is_found_by_a_trial(
    model_type: str, changes: dict, parts: list[str], tmp_path: Path
) -> None:
    save_checkpoint(model_type, tmp_path, **changes)
    refused(tmp_path, f"the {model_type} model cannot be run by transformers as", *parts)


@pytest.mark.medium
def test_changed_logits_are_found_by_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_config, "_COMPUTED_VALUES", {})
    save_checkpoint("cohere", tmp_path)
    refused(tmp_path, "changes the logits")
    edit_json(tmp_path / "config.json", logit_scale=1.0)
    model = runner_of(tmp_path).model
    model.lm_head.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    with pytest.raises(CheckpointError, match="changes rows on the way"):
        try_forward(model)


def test_rows_that_depend_on_each_other_are_found_by_a_trial(tmp_path: Path) -> None:
    """As in a convolution or a state-space layer, in any layer and direction."""
    save_checkpoint("llama", tmp_path)
    for layer, shift in ((0, 1), (2, -1)):
        model = runner_of(tmp_path).model
        mlp = model.causal_lm.base_model.layers[layer].mlp
        mlp.register_forward_hook(lambda module, args, output, shift=shift: output + output.roll(shift, 1))
        with pytest.raises(CheckpointError, match="rows depend on each other"):
            try_forward(model)


# Tensors


@pytest.mark.medium
@pytest.mark.parametrize("is_sharded", [False, True])
def test_wrong_tensors_of_experts_are_named(tmp_path: Path, is_sharded: bool) -> None:
    def wrong(*parts: str, **changes: Any) -> None:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        save_checkpoint("qwen3_moe", folder)
        edit_tensors(folder, **{name.replace(".", "/"): value for name, value in changes.items()})
        if is_sharded:
            shard(folder)
        refused(folder, "model", *parts)

    wrong("qwen3_moe model of these weights", **{EXPERT: None})
    wrong("qwen3_moe model of these weights", **{EXPERT: torch.ones(31, 64)})
    wrong("model.norm.weight is missing", **{"model.norm.weight": None})
    wrong("model.norm.weight is of another shape", **{"model.norm.weight": torch.ones(63)})
    wrong(
        "model.layers.3.mlp.gate.weight is not part", **{"model.layers.3.mlp.gate.weight": torch.ones(8, 64)}
    )
    late = EXPERT.replace("layers.1", "layers.3")
    wrong("qwen3_moe model of these weights", **{late: torch.ones(32, 64)})
    wrong(EXPERT, "torch.int8", **{EXPERT: torch.ones((32, 64), dtype=torch.int8)})


# Settings


@pytest.mark.parametrize("quantization", ["w8", "fp8"])
def test_settings_of_native_models_are_refused_when_auto_is_transformers(
    quantization: str, tmp_path: Path
) -> None:
    save_checkpoint("llama", tmp_path)
    parts = ("model.quantization", f"'{quantization}'", "set it to none")
    refused(tmp_path, *parts, error=SettingsError, quantization=quantization)


def test_a_model_that_transformers_runs_is_not_cut(tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    config = runner_of(tmp_path).model.config
    assert config.shard(1) is config
    with pytest.raises(SettingsError, match="tensor_parallel_size: got 2 for a llama model"):
        config.shard(2)


def test_int8_checkpoints_are_native(checkpoint: Path) -> None:
    edit_json(
        checkpoint / "config.json", quantization_config={"quant_method": "lopa_ray_int8", "format": "w8"}
    )
    refused(checkpoint, "quantization_config", "lopa_ray_int8", implementation="transformers")
