"""`execution/npu.py` against the published torch-npu: names and arguments as recorded, numbers with a stand-in.

No NPU has run any of it. What is checked is that it asks for what the package has, in the layout that it documents.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution import device, npu
from lopa_ray.execution.attention import LaneAttention
from lopa_ray.execution.attention_backends import BACKENDS, select_backend
from lopa_ray.execution.device import DEVICES
from support.attention_contract import check_backend
from support.paths import DATA, MODELS
from support.tiny_model import load_tiny_model

RECORDED = json.loads((DATA / "torch_npu.json").read_text(encoding="utf-8"))
"""Release → name → parameters, as the wheels of torch-npu declare them: the oldest and newest that fit the releases of
torch in pyproject.toml. `ProcessGroupHCCL` has those by which the package itself calls it."""


class Options:
    """Of a process group, with what may be set here."""

    __slots__ = ("_timeout",)


class FakeNpu:
    """One release of torch-npu on the CPU, as far as it is used here. It refuses what the package's declarations and
    documentation rule out."""

    def __init__(self, release: str) -> None:
        self._recorded = RECORDED[release]
        self.calls = 0
        self.npu = SimpleNamespace(is_available=self._declared("npu.is_available", lambda: True))
        self.npu_fused_infer_attention_score = self._declared("npu_fused_infer_attention_score", self._attend)
        group = self._declared("_C._distributed_c10d.ProcessGroupHCCL", lambda **given: given)
        options = self._declared("_C._distributed_c10d.ProcessGroupHCCL.Options", Options)
        group.Options = options  # type: ignore[attr-defined]
        self._C = SimpleNamespace(_distributed_c10d=SimpleNamespace(ProcessGroupHCCL=group))

    def _declared(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, to be called as the package's function of that name may be."""
        parameters = self._recorded[f"torch_npu.{name}"][1:-1]
        signature = inspect.signature(eval(f"lambda {parameters}: None"))

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(**signature.bind(*args, **kwargs).arguments)

        return call

    def _attend(self, **asked: Any) -> tuple[Tensor, Tensor]:
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


@pytest.fixture(params=RECORDED)
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeNpu:
    package = FakeNpu(request.param)
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
    assert fake.calls == 16


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
    group = npu.process_group("store", 1, 4, timedelta(seconds=7))
    assert group.pop("pg_options")._timeout == timedelta(seconds=7)
    assert group == {"store": "store", "group_rank": 1, "group_size": 4}


def test_a_missing_package_or_device_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, fake: FakeNpu
) -> None:
    fake.npu.is_available = lambda: False
    with pytest.raises(SettingsError, match=r"got 'npu'.*finds no NPU.*or set model.device: cpu"):
        DEVICES["npu"].torch_device()
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(SettingsError, match=r"torch-npu cannot be imported.*\.\[npu\]"):
        DEVICES["npu"].torch_device()
