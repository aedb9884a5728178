"""Checkpoints in formats that are not read are refused by the name of the format, and with what to take instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint_config import load_config
from lopa_ray.model.stored_quantization import unquantised_name
from support.checkpoints import edit_json
from support.transformers_checkpoints import save_checkpoint

INT4 = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group"}, "targets": ["Linear"]}}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "of quant_method 'gptq' (GPTQ, 4 bits)"),
    ({"quant_method": "awq", "w_bit": 4, "version": "gemm"}, "of quant_method 'awq' (AWQ, 4 bits)"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "of quant_method 'modelopt' (ModelOpt, NVFP4)"),
    ({"quant_method": "gguf"}, "of quant_method 'gguf' (GGUF)"),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "of quant_method 'bitsandbytes' (bitsandbytes, nf4)",
    ),
    (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        "of quant_method 'bitsandbytes' (bitsandbytes, int8)",
    ),
    (
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": INT4},
        "of quant_method 'compressed-tensors' (compressed-tensors, pack-quantized, int4)",
    ),
    ({"quant_method": "mxfp4"}, "of quant_method 'mxfp4' (MXFP4)"),
    ({"quant_method": "hqq", "nbits": 2}, "of quant_method 'hqq' (HQQ, 2 bits)"),
    ({"quant_method": "next_year"}, "of quant_method 'next_year'"),
    ({"bits": 4}, "of quant_method None (4 bits)"),
]


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_config(folder, **options)
    return str(caught.value)


@pytest.mark.parametrize(("stored", "named"), REFUSED, ids=str)
def test_the_method_is_named_and_so_is_what_to_take(
    checkpoint: Path, stored: dict[str, Any], named: str
) -> None:
    edit_json(checkpoint / "config.json", quantization_config=stored)
    message = refused(checkpoint)
    assert message.startswith(f"{checkpoint / 'config.json'}: got quantization_config {named};")
    assert "use the unquantised (bfloat16) checkpoint" in message
    assert "model.quantization: w8a8 or w8" in message


def test_a_value_that_is_no_object_is_shown(checkpoint: Path) -> None:
    edit_json(checkpoint / "config.json", quantization_config="int4")
    assert "got quantization_config 'int4';" in refused(checkpoint)


def test_a_model_that_transformers_runs_has_no_setting_for_it(tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    edit_json(tmp_path / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    message = refused(tmp_path, implementation="auto")
    assert (
        "of quant_method 'awq' (AWQ, 4 bits); weights in that format are not read for models that" in message
    )
    assert message.endswith("use the unquantised (bfloat16) checkpoint")


def test_a_file_of_model_optimizer_counts_where_the_configuration_says_nothing(checkpoint: Path) -> None:
    file = checkpoint / "hf_quant_config.json"
    file.write_text(
        '{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}'
    )
    assert "of quant_method 'modelopt' (ModelOpt, NVFP4)" in refused(checkpoint)
    edit_json(checkpoint / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "(GPTQ, 4 bits)" in refused(checkpoint)
    edit_json(checkpoint / "config.json", quantization_config=...)
    file.write_text("{")
    assert refused(checkpoint).startswith(f"{file}: cannot be read as JSON")


@pytest.mark.parametrize(
    ("where", "stated", "name"),
    [
        ("/h/models--org--Dream-7B-GPTQ-Int4/snapshots/0f/config.json", None, "org/Dream-7B"),
        ("/h/models--org--LLaDA2.0-mini-FP8/snapshots/0f/config.json", "/tmp/out", "org/LLaDA2.0-mini"),
        ("/h/models--org--SDAR-8B-quantized.w4a16/snapshots/0f/config.json", None, "org/SDAR-8B"),
        ("/h/models--org--x-NVFP4/snapshots/0f/config.json", "GSAI-ML/LLaDA-8B", "GSAI-ML/LLaDA-8B"),
        ("/h/models--org--x-bnb-4bit/snapshots/0f/config.json", "org/x-bnb-4bit", "org/x"),
        ("/data/dream-awq/config.json", None, "dream"),
        ("/data/dream/config.json", None, None),
        ("/data/awq/config.json", None, None),
    ],
)
def test_the_name_of_what_was_quantised(where: str, stated: str | None, name: str | None) -> None:
    assert unquantised_name({"_name_or_path": stated}, where) == name


def test_the_message_has_that_name(checkpoint: Path) -> None:
    folder = checkpoint.rename(checkpoint.with_name("Dream-7B-AWQ"))
    edit_json(folder / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    assert "use the unquantised (bfloat16) checkpoint (probably Dream-7B)" in refused(folder)
