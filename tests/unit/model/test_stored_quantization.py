"""Checkpoints in formats that are not read are refused by the name of the format, and with what to take instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.config_files import load_config
from support.checkpoints import edit_json
from support.transformers_checkpoints import save_checkpoint


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_config(folder, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "of quant_method 'gptq' (bits 4)"),
        ({"quant_method": "awq", "w_bit": 4}, "of quant_method 'awq' (w_bit 4)"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False},
            "of quant_method 'bitsandbytes' (load_in_4bit True)",
        ),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
            "of quant_method 'compressed-tensors' (format pack-quantized)",
        ),
        ({"quant_method": "next_year"}, "of quant_method 'next_year'"),
        ({"bits": 4}, "of quant_method None (bits 4)"),
        ("int4", "'int4'"),
    ],
)
def test_the_method_is_named_and_so_is_what_to_take(checkpoint: Path, stored: Any, named: str) -> None:
    edit_json(checkpoint / "config.json", quantization_config=stored)
    message = refused(checkpoint)
    assert message.startswith(f"{checkpoint / 'config.json'}: got quantization_config {named};")
    assert "use the unquantised (bfloat16) checkpoint" in message
    assert "model.quantization: w8a8 or w8" in message


def test_a_model_that_transformers_runs_has_no_setting_for_it(tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    edit_json(tmp_path / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    message = refused(tmp_path, implementation="auto")
    assert "of quant_method 'awq' (bits 4); weights in that format are not read for models that" in message
    assert message.endswith("use the unquantised (bfloat16) checkpoint")


def test_a_file_of_model_optimizer_counts_where_the_configuration_says_nothing(checkpoint: Path) -> None:
    file = checkpoint / "hf_quant_config.json"
    file.write_text(
        '{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}'
    )
    assert "of quant_method 'modelopt' (quant_algo NVFP4)" in refused(checkpoint)
    edit_json(checkpoint / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "(bits 4)" in refused(checkpoint)
    edit_json(checkpoint / "config.json", quantization_config=...)
    file.write_text("{")
    assert refused(checkpoint).startswith(f"{file}: cannot be read as JSON")
