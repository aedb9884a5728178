"""The harness itself: a fault that is planted in a step is found, and is named with its line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.padding import bucket_rows
from lopa_ray.kernels.silu_mul import silu_mul
from lopa_ray.model.transformer import AttentionFn
from support.device_log import DeviceLog
from support.fake_steps import StepSetup, config_of

Fault = Callable[[Tensor], object]
"""Takes the queries [R, H, E] of a layer."""


@dataclass(frozen=True, slots=True)
class FaultyAttention:
    """Attention that does something more in the first layer of each step."""

    fault: Fault
    bucket: Callable[[int], int] = bucket_rows

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        """See `AttentionBackend.bind`."""
        attention = PackedAttention().bind(cache, packing, columns)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if layer == 0:
                self.fault(q)
            return attention(layer, q, k, v)

        return attend


def step_with(fault: Fault) -> DeviceLog:
    return StepSetup(config_of("dream"), attention=FaultyAttention(fault)).log(1, 2, 16)


def copy_from_pinned(q: Tensor) -> Tensor:
    return torch.empty(4, pin_memory=True).to(q.device, non_blocking=True)


def assign_a_host_tensor(q: Tensor) -> None:
    q[0, 0] = torch.zeros(q.shape[-1])


def branch_on_a_number(q: Tensor) -> Tensor:
    return -q if q.sum() > 0 else q


LOGGED: dict[str, tuple[str, Fault]] = {
    "item": ("waits", lambda q: q.sum().item()),
    "float": ("waits", lambda q: float(q[0, 0, 0])),
    "branch": ("waits", branch_on_a_number),
    "any": ("waits", lambda q: bool((q > 0).any())),
    "equal": ("waits", lambda q: torch.equal(q, q)),
    "copy of a new tensor": ("copies in", lambda q: torch.tensor([1.0, 2.0], device=q.device)),
    "copy of a number": ("copies in", lambda q: torch.tensor(1.0, device=q.device)),
    "copy from pageable memory": ("waits", lambda q: torch.zeros(4).to(q.device, non_blocking=True)),
    "copy from pinned memory": ("copies in", copy_from_pinned),
    "copy in place": ("copies in", assign_a_host_tensor),
    "copy out": ("copies out", lambda q: q.cpu()),
    "copy out without a wait": ("copies out", lambda q: q.to("cpu", non_blocking=True)),
    "host scalar": ("host and device mixed", lambda q: q + torch.tensor(1.0)),
    "host indices": ("host and device mixed", lambda q: q[torch.tensor([0, 1])]),
    "list of indices": ("host and device mixed", lambda q: q[[0, 1]]),
    "transposed argument": ("not contiguous", lambda q: silu_mul(q.flatten(1).t())),
    "sliced argument": ("not contiguous", lambda q: silu_mul(q.flatten(1)[:, 2:])),
}
"""Name → the kind of fault in the log, and what is done."""

RAISED: dict[str, tuple[str, Fault]] = {
    "two devices": ("on the same device", lambda q: q + torch.zeros(q.shape)),
    "host weights": (
        "on the same device",
        lambda q: torch.nn.functional.linear(q, torch.zeros(4, q.shape[-1], dtype=q.dtype)),
    ),
    "nonzero": ("nonzero", lambda q: q.nonzero()),
    "mask": ("nonzero", lambda q: q[q > 0]),
    "masked_select": ("masked_select", lambda q: q.masked_select(q > 0)),
    "unique": ("unique", lambda q: q.unique()),
    "synchronize": ("CUDA", lambda _: torch.cuda.synchronize()),
}
"""Name → a part of the error, and what is done. The size of a result that depends on numbers is one wait more."""


def test_a_step_without_a_fault_has_none() -> None:
    log = step_with(lambda _: None)
    assert log.faults == []
    assert len(log.copies_in) == len(log.copies_out) == 1


@pytest.mark.parametrize("name", LOGGED)
def test_what_a_step_must_not_do_is_logged(name: str) -> None:
    kind, fault = LOGGED[name]
    found = [line for line in step_with(fault).faults if line.startswith(f"{kind}: ")]
    assert len(found) == 1
    assert "tests/stand_in/test_device_log.py:" in found[0] or kind == "not contiguous"


@pytest.mark.parametrize("name", RAISED)
def test_what_a_step_cannot_do_fails(name: str) -> None:
    message, fault = RAISED[name]
    with pytest.raises(Exception, match=message):
        step_with(fault)


def test_kernels_are_counted() -> None:
    """Views and allocations are none."""
    plain = step_with(lambda _: None)
    added = step_with(lambda q: q.flatten(1).t().new_empty(3))
    more = step_with(lambda q: (q + 1) * 2)
    assert added.launches == plain.launches
    assert more.launches - plain.launches == {"aten.add.Tensor": 1, "aten.mul.Tensor": 1}
