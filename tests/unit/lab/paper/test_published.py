"""What the paper's tables say, and the presets made of it."""

from __future__ import annotations

from typing import Any

import pytest

from lopa_lab.paper.cells import METRICS, published
from lopa_ray.engine.config import Config

NUMBERS = published()
"""Sizes are in positions; `tp`: devices that a model is cut over, `bp`: groups of these for the branches."""
THRESHOLDS = ("block_add_threshold", "decoded_token_threshold", "confidence_threshold")


def test_numbers_of_the_tables() -> None:
    """Spots of each table."""
    table1, table2, table3, table4, table7 = (
        {(row["model"], row["row"]): row["results"] for row in NUMBERS["results"][name]}
        for name in ("table1", "table2", "table3", "table4", "table7")
    )
    assert table1["D2F-Dream", "lopa"]["gsm8k"] == {"tpf": 10.1, "score": 73.8}
    assert table1["Dream", "fast_dllm"]["math"] == {"tpf": 1.9, "score": 37.6}
    assert table2["D2F-DiffuCoder", "lopa"]["humaneval_plus"] == {"tpf": 8.3, "score": 64.0}
    assert table2["D2F-DiffuCoder", "d2f"]["mbpp_plus"] == {"tpf": 2.2, "score": 61.9}
    assert table3["D2F-Dream-Base", "LoPA-Dist-Ascend"]["mbpp"] == {
        "avg_tps": 1073.86,
        "max_tps": 2400.12,
        "tpf": 11.92,
        "latency_s": 0.78,
    }
    assert table4["D2F-Dream-Instruct", "S7"]["gsm8k"] == {
        "avg_tps": 379.42,
        "max_tps": 839.65,
        "top10_tps": 710.1,
        "score": 75.28,
    }
    assert table7["SDAR-4B-Chat", ""]["mbpp"] == {
        "avg_tps": None,
        "tpf": 1.5,
        "latency_s": None,
        "score": 52.0,
    }
    assert [len(table) for table in (table1, table2, table3, table4, table7)] == [5, 3, 4, 36, 6]
    assert "2512.16229" in NUMBERS["source"]


def test_every_metric_is_explained() -> None:
    rows = [row for table in NUMBERS["results"].values() for row in table]
    assert set(METRICS) == {metric for row in rows for values in row["results"].values() for metric in values}


def test_table_3_is_settings_12_and_18() -> None:
    """It names no settings, but the TPS of its rows are theirs, for both models and tasks."""
    table4 = {(row["model"], row["row"]): row["results"] for row in NUMBERS["results"]["table4"]}
    for row in NUMBERS["results"]["table3"]:
        setting = {"LoPA-Dist-NV": "S12", "LoPA-Dist-Ascend": "S18"}[row["row"]]
        for task, values in row["results"].items():
            for metric in ("avg_tps", "max_tps"):
                assert values[metric] == table4[row["model"], setting][task][metric]


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
