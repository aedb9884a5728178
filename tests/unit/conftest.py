"""Fixtures that several files of unit tests need."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lopa_ray.execution import canvas_attention
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.device import DEVICES
from support.fake_backend import FakeBackend, Server, serving
from support.marks import also_slow
from support.paths import MODELS

LONGER = {
    "bench": ("test_commands.py", "test_cost_commands.py"),
    "cli": ("test_help.py",),
    "choices": ("test_tool_answers.py",),
    "conformance": ("test_golden.py",),
    "constraints": (
        "test_banned_words.py",
        "test_constraint.py",
        "test_json_schema.py",
        "test_schema_answers.py",
    ),
    "decoding": (
        "test_blocks_in_flight.py",
        "test_blockwise_decoders.py",
        "test_sub_blocks.py",
        "test_trace.py",
        "test_verified.py",
    ),
    "deploy": ("test_distributions.py",),
    "engine": (
        "test_banned_words.py",
        "test_constraint_cache.py",
        "test_decide.py",
        "test_likelihood.py",
        "test_structured_output.py",
    ),
    "decisions": ("test_eval_decisions.py",),
    "evaluation": ("test_harness_model.py", "test_likelihoods.py"),
    "execution": (
        "test_decisions.py",
        "test_logit_changes.py",
        "test_runner_bit_equality.py",
        "test_step_launches.py",
        "test_tensor_parallel.py",
    ),
    "experiments": ("test_experiments.py", "test_fit_fill_model.py"),
    "http": ("test_contract.py",),
    "kernels": ("test_triton_kernels.py",),
    "model": (
        "test_experts.py",
        "test_hub_failures.py",
        "test_transformers_implementation.py",
        "test_transformers_models.py",
        "test_transformers_refusals.py",
    ),
    "paper": ("test_reproduce.py",),
    "scheduling": (
        "test_fair_queue.py",
        "test_prefix_index.py",
        "test_recovery.py",
        "test_two_steps_in_flight.py",
    ),
    "unit": ("test_imports.py",),
    "word_problems": ("test_word_problems.py",),
}
"""Files by folder whose tests take the longest. `make test-fast` leaves them out; all others are `fast`."""


def is_longer(file: Path) -> bool:
    return file.name in LONGER.get(file.parent.name, ())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a selected test: each process of pytest would import them, which takes long."""
    if not collection_path.name.startswith("test_"):
        return None
    return (config.option.markexpr == "fast" and is_longer(collection_path)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` runs."""
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here) or is_longer(item.path):
            continue
        if item.get_closest_marker("slow"):
            raise pytest.UsageError(f"{item.nodeid} is slow: list its file in LONGER of {__file__}")
        if not item.get_closest_marker("nightly"):
            item.add_marker("fast")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A published checkpoint that may be changed."""
    return Path(shutil.copytree(MODELS / "dream-tiny-2l", tmp_path / "model"))


@pytest.fixture(params=["lane by lane", *also_slow("packed")])
def either_attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Attention as CPUs compute it by default, and as accelerators do: one call per layer, by its reference."""
    if request.param == "packed":
        monkeypatch.setattr(canvas_attention, "SDPA_ATTENTION", PackedAttention())
        packed = dataclasses.replace(DEVICES["cpu"], attention_backends=("reference",))
        monkeypatch.setitem(DEVICES, "cpu", packed)
    return str(request.param)


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The HTTP application over a fake backend, with the settings in the file's HTTP_SETTINGS, if it has them."""
    with serving(**getattr(request.module, "HTTP_SETTINGS", {})) as running:
        yield running


@pytest.fixture
def server(module_server: Server) -> Server:
    """The module's server as it was at the start."""
    module_server.backend.reset()
    return module_server


@pytest.fixture
def backend(server: Server) -> FakeBackend:
    """What answers the server's requests."""
    return server.backend


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A client without an API key. It reads no certificates, which takes longer than ten requests."""
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as opened:
        yield opened
