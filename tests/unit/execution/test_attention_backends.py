"""Every attention backend that runs here against the formula, and the choice among them."""

from __future__ import annotations

import dataclasses
import logging
from typing import get_args

import pytest
import torch
from torch import Tensor

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution import attention, attention_backends
from lopa_ray.execution.attention import SDPA_ATTENTION, AttentionBackend, LaneAttention, PackedAttention
from lopa_ray.execution.attention_backends import (
    BACKENDS,
    TOLERANCE,
    resolve_attention,
    select_backend,
)
from lopa_ray.execution.attention_trial import attention_formula
from lopa_ray.execution.device import DEVICES, Device
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.kernels.sdpa import sdpa
from support.attention_contract import check_backend
from support.tiny_model import load_tiny_model

RUNNABLE = ["sdpa", "reference"]

CAPACITY = 64


def test_every_value_of_the_setting_is_a_backend_of_a_device() -> None:
    values = set(get_args(ModelSettings.model_fields["attention"].annotation))
    assert values == {"auto", *BACKENDS}
    assert {name for device in DEVICES.values() for name in device.attention_backends} == BACKENDS.keys()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_backend_computes_the_formula(name: str, dtype: torch.dtype) -> None:
    for backend in BACKENDS[name]:
        check_backend(backend, "cpu", dtype)


def test_the_formula_written_out_for_one_head_of_one_row() -> None:
    q, keys, values = torch.randn(3, 4, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    scores = [float(q[2, 3] @ keys[1, at]) / 8**0.5 for at in range(5)]
    weights = torch.tensor(scores).softmax(0)
    torch.testing.assert_close(attention_formula(q, keys, values)[2, 3], weights @ values[1])


def fails(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    raise ImportError("no kernel here\nsecond line")


def wrong(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return sdpa(q, keys, values) * 1.5


def slow(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    for _ in range(20):
        out = sdpa(q, keys, values)
    return out


def select(name: str, device: Device) -> AttentionBackend:
    return select_backend(name, device, load_tiny_model().config, torch.float32, CAPACITY)


def short_of_memory(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    if len(q) > 20:
        raise MemoryError(f"{len(q)} rows")
    return sdpa(q, keys, values)


def test_auto_says_what_it_took_and_why(monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO, "lopa.attention")
    assert select("auto", DEVICES["cpu"]) is SDPA_ATTENTION
    assert caplog.messages == ["attention on cpu: sdpa (first choice)"]
    # A device that would rather have another backend, which fails, or computes something else.
    picky = dataclasses.replace(DEVICES["cpu"], attention_backends=("flash_attn", "sdpa"))
    for kernel, reason in ((fails, "ImportError: no kernel here)"), (wrong, "flash_attn is off by")):
        monkeypatch.setitem(BACKENDS, "flash_attn", (LaneAttention(kernel),))
        assert select("auto", picky) is SDPA_ATTENTION
        assert "sdpa (flash_attn" in caplog.messages[-1] and reason in caplog.messages[-1]
        assert "second line" not in caplog.messages[-1]
        with pytest.raises(SettingsError, match=r"got 'flash_attn'.*allowed on cpu: auto, flash_attn, sdpa"):
            select("flash_attn", picky)


def test_a_device_may_have_auto_take_the_fastest(monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO, "lopa.attention")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setitem(BACKENDS, "flash_attn", (LaneAttention(wrong),))
    monkeypatch.setitem(BACKENDS, "reference", (LaneAttention(slow),))
    monkeypatch.setitem(BACKENDS, "npu", (LaneAttention(short_of_memory),))
    names = ("reference", "flash_attn", "npu", "sdpa")
    timed = dataclasses.replace(DEVICES["cpu"], attention_backends=names, timed_attention=names)
    assert resolve_attention(timed, load_tiny_model().config, torch.float32, CAPACITY) == "sdpa"
    assert "attention on cpu: sdpa (reference takes " in caplog.messages[-1]
    assert "npu fails with MemoryError: 64 rows" in caplog.messages[-1]
    assert "flash_attn is off by" in caplog.messages[-1] and "µs per layer" in caplog.messages[-1]
    none = dataclasses.replace(timed, timed_attention=("flash_attn",))
    with pytest.raises(SettingsError, match="got 'auto', but flash_attn is off by"):
        resolve_attention(none, load_tiny_model().config, torch.float32, CAPACITY)


def test_of_several_backends_of_a_name_the_first_that_works_is_taken(monkeypatch) -> None:
    works = LaneAttention(sdpa)
    monkeypatch.setitem(BACKENDS, "reference", (LaneAttention(fails), LaneAttention(wrong), works))
    assert select("reference", DEVICES["cpu"]) is works


CUDA_ON_CPU = dataclasses.replace(DEVICES["cuda"], torch_name="cpu")
"""The choice of a GPU, computed here."""

NO_TRITON = "ModuleNotFoundError: No module named 'triton'"


def test_auto_needs_triton_on_a_gpu_unless_a_slow_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention_backends, attention):
        monkeypatch.setattr(module, "triton_failure", lambda: NO_TRITON)
    with pytest.raises(SettingsError) as raised:
        select("auto", CUDA_ON_CPU)
    for part in ("model.attention: got 'auto'", NO_TRITON, "install the package triton", "(sdpa)"):
        assert part in str(raised.value)
    with pytest.raises(
        SettingsError, match=rf"triton fails with RuntimeError: Triton does not .*\({NO_TRITON}\)"
    ):
        select("triton", CUDA_ON_CPU)
    assert select("sdpa", CUDA_ON_CPU) is SDPA_ATTENTION


def test_a_backend_of_another_device_is_refused() -> None:
    with pytest.raises(SettingsError, match="flash_attn is not for cpu"):
        build_runner(ModelSpec.read(Config.load("demo", {"model": {"attention": "flash_attn"}})))


@pytest.mark.medium
def test_the_setting_reaches_the_forward(monkeypatch) -> None:
    calls = []

    def counted(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        calls.append(q.shape)
        return sdpa(q, keys, values)

    wanted = LocalEngine.from_pretrained("demo", attention="reference", max_num_seqs=1)
    monkeypatch.setitem(attention_backends.BACKENDS, "sdpa", (LaneAttention(counted),))
    settings = LopaSettings(num_branches=2, max_new_tokens=8)
    engine = LocalEngine.from_pretrained("demo", attention="sdpa", max_num_seqs=1)
    trial = len(calls)
    assert engine.generate([5, 6, 7], settings).token_ids == wanted.generate([5, 6, 7], settings).token_ids
    assert len(calls) > trial + 5
    runner = build_runner(ModelSpec.read(Config.load("demo", {"model": {"attention": "reference"}})))
    assert isinstance(runner.attention, PackedAttention)
