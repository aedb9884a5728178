"""Graph mode: layers that torch.compile has taken, against the same layers as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from lopa_ray.engine.config import Config
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.config import Quantization
from support.marks import also_long
from support.tiny_model import load_tiny_model

IDS = [5, 9, 127, 127, 3, 127, 60, 127]


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize("backend", ["eager", *also_long("inductor")])
@pytest.mark.parametrize("name", ["dream-tiny-4l", "sdar-tiny-3l"])
@pytest.mark.parametrize("quantization", ["none", "w8a8", "fp8"])
def test_the_same_graphs_serve_all_layers_and_any_number_of_rows(
    quantization: Quantization, name: str, backend: str
) -> None:
    plain, compiled = (
        BranchRunner(load_tiny_model(name, quantization), max_num_seqs=1, max_model_len=96) for _ in range(2)
    )
    compiled.model.compile_layers(backend)
    # 48 rows first: dims that are equal in the first call are taken to be so in all.
    for ids in (IDS * 5, IDS, IDS * 3, IDS * 10):
        wanted, logits = plain.logits(ids), compiled.logits(ids)
        if backend == "eager":
            assert torch.equal(logits, wanted)
        else:
            assert (logits - wanted).norm() / wanted.norm() < (1e-5 if quantization == "none" else 1e-2)
    # One before attention and one after; int8 products of few rows are padded, so they have their own.
    assert counters["stats"]["unique_graphs"] == (4 if quantization == "w8a8" else 2)
    assert not counters["graph_break"]


@pytest.mark.parametrize("quantization", ["none", "w8a8", "fp8"])
@pytest.mark.parametrize("compile_them", [False, True])
def test_the_setting_has_the_layers_compiled_before_the_first_step(
    compile_them: bool, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], compile_backend="eager"))
    changes = {"model": {"compile": compile_them, "max_num_seqs": 1, "quantization": quantization}}
    runner = build_runner(ModelSpec.read(Config.load("demo", changes)))
    num_graphs = counters["stats"]["unique_graphs"]
    assert (num_graphs > 0) is compile_them
    assert runner.cache.request_ids == [None]
    for ids in (IDS, IDS * 6):
        runner.logits(ids)
    assert counters["stats"]["unique_graphs"] == num_graphs
