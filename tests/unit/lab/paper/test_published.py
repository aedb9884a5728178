"""What the paper's tables say, and the presets made of it."""

from __future__ import annotations

from typing import Any

import pytest

from lopa_lab.paper.cells import METRICS, published
from lopa_ray.engine.config import Config

NUMBERS = published()
"""Sizes are in positions; `tp`: devices that a model is cut over, `bp`: groups of these for the branches."""
THRESHOLDS = ("block_add_threshold", "decoded_token_threshold", "confidence_threshold")


def test_every_metric_is_explained() -> None:
    rows = [row for table in NUMBERS["results"].values() for row in table]
    assert set(METRICS) == {metric for row in rows for values in row["results"].values() for metric in values}


@pytest.mark.parametrize(
    "setting", NUMBERS["decode_settings"], ids=lambda setting: f"{setting['model']}-{setting['task']}"
)
def test_presets_are_table_5(setting: dict[str, Any]) -> None:
    config = Config.load(f"paper/{setting['model']}-{setting['task']}".lower().replace("_", "-"))
    decode = config.decode.model_dump()
    same = ("block_size", *THRESHOLDS)
    assert {name: decode[name] for name in same} == {name: setting[name] for name in same}
    assert decode["decoder"] == "lopa" and decode["num_branches"] == setting["branches"]
    assert decode["window_attention"] == "full"
    model = {"D2F-Dream": "Dream-v0-Instruct-7B", "D2F-DiffuCoder": "DiffuCoder-7B-Instruct"}[
        setting["model"]
    ]
    assert config.model.path.endswith(model) and config.group.num_workers == 1


@pytest.mark.parametrize("setting", NUMBERS["system_settings"], ids=lambda setting: setting["setting"])
def test_presets_are_table_6(setting: dict[str, Any]) -> None:
    config = Config.load(f"paper/{setting['setting'].lower()}")
    decode = config.decode.model_dump()
    same = ("block_size", *THRESHOLDS)
    assert {name: decode[name] for name in same} == {name: setting[name] for name in same}
    assert decode["max_new_tokens"] == setting["length"] and decode["num_branches"] == setting["bp"]
    assert (config.group.num_workers, config.group.tensor_parallel_size) == (setting["bp"], setting["tp"])
    ascend = setting["system"] == "LoPA-Dist-Ascend"
    assert config.model.device == ("npu" if ascend else "cuda")
    assert config.model.quantization == ("w8a8" if setting["precision"] == "w8a8" else "none")
    assert decode["window_attention"] == ("block_causal" if ascend else "full")
    assert config.model.path == "Dream-org/Dream-v0-Base-7B" and config.model.max_num_seqs == 1
