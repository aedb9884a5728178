"""`execution/npu.py` against the published torch-npu: names and arguments as recorded, numbers with a stand-in.

No NPU has run any of it. What is checked is that it asks for what the package has, in the layout that it documents.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from record.torch_npu_signatures import RECORD, parse_signature
from torch import Tensor

from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution import device, npu
from lopa_ray.execution.attention import LaneAttention
from lopa_ray.execution.attention_backends import BACKENDS, select_backend
from lopa_ray.execution.device import DEVICES
from support.attention_contract import check_backend
from support.paths import MODELS
from support.tiny_model import load_tiny_model

RECORDED: dict[str, dict[str, str]] = json.loads(RECORD.read_text(encoding="utf-8"))
OPERATOR = "npu_fused_infer_attention_score"


class FakeNpu:
    """torch-npu on the CPU, as far as it is used here. It refuses what the package's documentation rules out."""

    def __init__(self) -> None:
        self.npu = SimpleNamespace(is_available=lambda: True)
        self.calls = 0
        process_group = SimpleNamespace(Options=SimpleNamespace)
        self._C = SimpleNamespace(_distributed_c10d=SimpleNamespace(ProcessGroupHCCL=process_group))

    def npu_fused_infer_attention_score(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        asked = parse_signature(RECORDED["2.13.0"][f"torch_npu.{OPERATOR}"]).bind(*args, **kwargs).arguments
        q, k, v = (asked[name] for name in ("query", "key", "value"))
        if q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError(f"query of {q.dtype}")
        assert asked["input_layout"] == "BNSD" and k.shape == v.shape
        assert all(x.dim() == 4 and x.shape[0] == 1 and x.is_contiguous() for x in (q, k, v))
        assert (q.shape[1], k.shape[1]) == (asked["num_heads"], asked["num_key_value_heads"])
        if q.shape[3] % 16:
            raise RuntimeError("head dim is no multiple of 16")
        (length,) = asked["actual_seq_lengths_kv"]
        assert length <= k.shape[2]
        self.calls += 1
        groups = q.shape[1] // k.shape[1]
        keys, values = (x[:, :, :length].repeat_interleave(groups, dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, keys, values, scale=asked["scale"]), torch.zeros(1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNpu:
    package = FakeNpu()
    monkeypatch.setitem(sys.modules, "torch_npu", package)
    # The device as it is, on memory that is there.
    here = dataclasses.replace(DEVICES["npu"], torch_name="cpu")
    monkeypatch.setitem(DEVICES, "npu", here)
    device._warn_untested.cache_clear()
    return package


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_kernel_computes_the_formula(fake: FakeNpu, dtype: torch.dtype) -> None:
    (backend,) = BACKENDS["npu"]
    check_backend(backend, "cpu", dtype)
    assert fake.calls == 14


def test_it_reads_the_slot_that_it_is_given_rows_of() -> None:
    slots = torch.arange(3 * 2 * 2 * 8 * 16).view(3, 2, 2, 8, 16)
    for slot in slots:
        keys, values = slot[:, :, :5]
        assert torch.equal(npu._whole_slot(keys), slot[0][None]) and torch.equal(
            npu._whole_slot(values), slot[1][None]
        )


def test_auto_takes_it_where_it_works(fake: FakeNpu, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lopa.attention")
    config = dataclasses.replace(load_tiny_model().config, head_dim=16)
    backend = select_backend("auto", DEVICES["npu"], config, torch.bfloat16, 64)
    assert backend == LaneAttention(npu.attention)
    select_backend("auto", DEVICES["npu"], config, torch.float32, 64)
    assert caplog.messages[-1].startswith("attention on npu: sdpa (npu fails with RuntimeError: query of")


def test_a_whole_decode_on_the_stand_in(fake: FakeNpu, caplog: pytest.LogCaptureFixture) -> None:
    """All that the device brings along, and one warning at start-up."""
    settings = LopaSettings(num_branches=3, max_new_tokens=24, window_attention="block_causal", block_size=8)
    options = {"dtype": "bfloat16", "max_num_seqs": 1, "max_model_len": 64}
    plain = LocalEngine.from_pretrained(MODELS / "dream-tiny-2l", **options)
    engine = LocalEngine.from_pretrained(MODELS / "dream-tiny-2l", device="npu", **options)
    result = engine.generate([5, 6, 7], settings)
    assert fake.calls > 10
    assert result.token_ids == plain.generate([5, 6, 7], settings).token_ids
    LocalEngine.from_pretrained(MODELS / "dream-tiny-2l", device="npu", attention="sdpa")
    warnings = [record.getMessage() for record in caplog.records if record.name == "lopa.device"]
    assert len(warnings) == 1 and "device npu: this project has not run on hardware" in warnings[0]


def test_a_process_group_is_made_as_the_package_makes_its_own(fake: FakeNpu) -> None:
    created = []

    class Group:
        Options = SimpleNamespace

        def __init__(self, *arguments: Any) -> None:
            created.append(arguments)

    fake._C._distributed_c10d.ProcessGroupHCCL = Group
    npu.process_group("store", 1, 4, timedelta(seconds=7))
    assert created == [("store", 1, 4, SimpleNamespace(_timeout=timedelta(seconds=7)))]


def test_a_missing_package_or_device_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, fake: FakeNpu
) -> None:
    fake.npu.is_available = lambda: False
    with pytest.raises(SettingsError, match=r"got 'npu'.*finds no NPU.*or set model.device: cpu"):
        DEVICES["npu"].torch_device()
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(SettingsError, match=r"torch-npu cannot be imported.*\.\[npu\]"):
        DEVICES["npu"].torch_device()
