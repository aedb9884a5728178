"""`execution/flash_attention.py` against the published packages: arguments as recorded, numbers with a stand-in.

What is checked is that each version is asked for what it has, in the layout that it documents.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.attention_backends import BACKENDS, resolve_attention
from lopa_ray.execution.attention_trial import attention_formula
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.flash_attention import VERSIONS, FlashAttention
from support.attention_contract import check_backend
from support.paths import ROOT
from support.tiny_model import load_tiny_model

pytestmark = pytest.mark.medium

RECORDED = json.loads((ROOT / "tests" / "data" / "flash_attn.json").read_text(encoding="utf-8"))


def attend(q: Tensor, lanes: list[tuple[Tensor, Tensor]], rows: Tensor, empty_lse: float) -> Any:
    """Attention and log-sum-exp of each lane's rows over its keys and values [L, K, E]."""
    out, lse = torch.zeros_like(q), torch.full((q.shape[1], q.shape[0]), empty_lse)
    for (keys, values), begin, end in zip(lanes, rows.tolist(), rows.tolist()[1:], strict=False):
        own = slice(begin, end)
        if len(keys) and end > begin:
            keys, values = keys.transpose(0, 1), values.transpose(0, 1)
            out[own] = attention_formula(q[own], keys, values).to(q.dtype)
            wide = keys.float().repeat_interleave(q.shape[1] // keys.shape[0], 0)
            scores = torch.einsum("the,hle->htl", q[own].float(), wide) * q.shape[2] ** -0.5
            lse[:, own] = scores.logsumexp(-1)
    return out, lse


class FakeFlash:
    """The functions of one version, on the CPU."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.calls = 0

    def function(self, name: str) -> Callable[..., Any]:
        parameters = RECORDED[str(self.version)][name][1:-1]
        signature = inspect.signature(eval(f"lambda {parameters}: None"))

        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            self.calls += 1
            return getattr(self, f"_version_{self.version}")(given.arguments)

        return call

    def _version_2(self, given: dict[str, Any]) -> Any:
        q, k, v, rows, table = (given[n] for n in ("q", "k", "v", "cu_seqlens_q", "block_table"))
        ends = given["cu_seqlens_k"]
        self._check(rows, ends, given["max_seqlen_q"])
        if table is None:
            lanes = [(k[a:b], v[a:b]) for a, b in itertools.pairwise(ends)]
        else:
            assert k.shape[1] % 256 == 0 and table.dtype == torch.int32
            lengths = ends.diff()
            assert lengths.max() <= given["max_seqlen_k"]
            lanes = [(k[page, :n], v[page, :n]) for page, n in zip(table[:, 0], lengths, strict=True)]
        assert given["return_attn_probs"]
        return *attend(q, lanes, rows, torch.inf), None

    def _version_3(self, given: dict[str, Any]) -> Any:
        rows = given["cu_seqlens_q"]
        assert given["num_splits"] == 1
        if "k_cache" in given:
            keys, values, lengths = given["k_cache"], given["v_cache"], given["cache_seqlens"]
            self._check(rows, lengths, given["max_seqlen_q"])
            index = given["cache_batch_idx"]
            lanes = [(keys[slot, :n], values[slot, :n]) for slot, n in zip(index, lengths, strict=True)]
            assert given["return_softmax_lse"]
            return *attend(given["q"], lanes, rows, -torch.inf), None, None
        ends = given["cu_seqlens_k"]
        self._check(rows, ends, given["max_seqlen_q"])
        assert given["return_attn_probs"]
        lanes = [(given["k"][a:b], given["v"][a:b]) for a, b in itertools.pairwise(ends)]
        return attend(given["q"], lanes, rows, -torch.inf)

    def _version_4(self, given: dict[str, Any]) -> Any:
        k, v, rows, ends = (given[n] for n in ("k", "v", "cu_seqlens_q", "cu_seqlens_k"))
        assert given["return_lse"] and given["num_splits"] == 1
        self._check(rows, rows, given["max_seqlen_q"])
        if given["page_table"] is None:
            lanes = [(k[a:b], v[a:b]) for a, b in itertools.pairwise(ends)]
        else:
            assert ends is None and given["page_table"].stride(-1) == 1
            pairs = zip(given["page_table"][:, 0], given["seqused_k"], strict=True)
            lanes = [(k[page, :n], v[page, :n]) for page, n in pairs]
        return attend(given["q"], lanes, rows, -torch.inf)

    @staticmethod
    def _check(rows: Tensor, lengths: Tensor, longest: int) -> None:
        assert rows.dtype == lengths.dtype == torch.int32 and rows.is_contiguous() and lengths.is_contiguous()
        assert rows.diff().min() >= 0 and rows.diff().max() <= longest


@pytest.fixture(params=VERSIONS)
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeFlash:
    flash = FakeFlash(request.param)
    package = ModuleType("flash_attn")
    package.__path__ = []  # type: ignore[attr-defined]  # which makes it a package
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    for path in RECORDED[str(request.param)]:
        module, _, name = path.rpartition(".")
        holder = sys.modules.get(module) or ModuleType(module)
        setattr(holder, name, flash.function(path))
        monkeypatch.setitem(sys.modules, module, holder)
    return flash


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_both_parts_merged_are_the_formula(fake: FakeFlash, dtype: torch.dtype) -> None:
    check_backend(FlashAttention(fake.version), "cpu", dtype)
    assert fake.calls == 2 * 3  # the other cases have segments, or see what is cached behind the lane


def test_versions_that_are_not_installed_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flash_attn", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, None)
    for version in VERSIONS:
        with pytest.raises(ImportError, match="flash_attn"):
            check_backend(FlashAttention(version), "cpu", torch.float16)


def test_it_pads_like_the_backend_that_it_hands_steps_to() -> None:
    assert FlashAttention(2).bucket is PackedAttention().bucket


def test_auto_times_the_slots_that_it_is_going_to_use(
    fake: FakeFlash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 takes slots with a multiple of 256 positions alone."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setitem(BACKENDS, "flash_attn", (FlashAttention(fake.version),))
    device = dataclasses.replace(
        DEVICES["cpu"], attention_backends=("flash_attn",), timed_attention=("flash_attn",)
    )
    config = load_tiny_model().config
    assert resolve_attention(device, config, torch.float16, 1024) == "flash_attn"
