"""Every attention kernel that runs here against the formula, and the choice among them."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from torch import Tensor

from lopa_ray.config.config import Config
from lopa_ray.config.decoder_settings import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution import attention_kernels
from lopa_ray.execution.attention_kernels import TOLERANCE, reference_attention, sdpa, select_kernel
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_loader import build_runner
from support.kernel_contract import check_kernel
from support.tiny_model import load_tiny_model

RUNNABLE = ["sdpa", pytest.param("flex", marks=pytest.mark.long)]  # flex compiles for minutes


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_kernel_computes_the_formula_on_views_of_a_cache(name: str, dtype: torch.dtype) -> None:
    check_kernel(name, "cpu", dtype)


def test_the_reference_is_the_formula() -> None:
    """Written out for one head of one row."""
    q, keys, values = torch.randn(3, 4, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    scores = [float(q[2, 3] @ keys[1, at]) / 8**0.5 for at in range(5)]
    weights = torch.tensor(scores).softmax(0)
    torch.testing.assert_close(reference_attention(q, keys, values)[2, 3], weights @ values[1])


def test_auto_says_what_it_took_and_why(monkeypatch, caplog) -> None:
    config = load_tiny_model().config
    caplog.set_level(logging.INFO, "lopa.kernels")
    assert select_kernel("auto", DEVICES["cpu"], config, torch.float32) is sdpa
    assert caplog.messages == ["attention on cpu: sdpa (first choice)"]
    # A device that would rather have another kernel, which fails, or computes something else.
    picky = dataclasses.replace(DEVICES["cpu"], attention_kernels=("flash_attn", "sdpa"))

    def fails(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        raise ImportError("no kernel here\nsecond line")

    def wrong(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return sdpa(q, keys, values) * 1.5

    for kernel, reason in ((fails, "ImportError: no kernel here)"), (wrong, "flash_attn is off by")):
        monkeypatch.setitem(attention_kernels.KERNELS, "flash_attn", kernel)
        assert select_kernel("auto", picky, config, torch.float32) is sdpa
        assert "sdpa (flash_attn" in caplog.messages[-1] and reason in caplog.messages[-1]
        assert "second line" not in caplog.messages[-1]
        with pytest.raises(SettingsError, match=r"got 'flash_attn'.*allowed on cpu: auto, flash_attn, sdpa"):
            select_kernel("flash_attn", picky, config, torch.float32)


def test_a_kernel_of_another_device_is_refused() -> None:
    with pytest.raises(SettingsError, match="flash_attn is not for cpu"):
        build_runner(Config.load("demo", {"model": {"attention": "flash_attn"}}), None)


def test_the_setting_reaches_the_forward(monkeypatch) -> None:
    calls = []

    def counted(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        calls.append(q.shape)
        return sdpa(q, keys, values)

    monkeypatch.setitem(attention_kernels.KERNELS, "flex", counted)
    settings = LopaSettings(num_branches=2, max_new_tokens=8)
    one, other = (
        LocalEngine.from_pretrained("demo", attention=name, max_num_seqs=1).generate([5, 6, 7], settings)
        for name in ("sdpa", "flex")
    )
    assert one.token_ids == other.token_ids
    assert len(calls) > 5
