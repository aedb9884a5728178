"""Triton kernels without a GPU: their results in Triton's interpreter, and whether they compile."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

# Operators that models and runners import are defined with them.
import lopa_ray.execution.attention_backends
import lopa_ray.execution.runner  # noqa: F401
from lopa_ray.kernels.operators import LAUNCHES
from support.marks import also_long, also_slow
from support.paths import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install triton"
)

CASES = {"slot_attention": 4, "split_attention": 1, "row_scores": 4}


def run(program: str, *arguments: str, **environment: str) -> str:
    """What a program of the tests prints, in a process of its own: Triton is imported in one mode only."""
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "programs" / program), *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("times", [*also_slow(1), *also_long(2)])
def test_kernels_compute_what_their_references_do(times: int) -> None:
    cases = {operator: times * CASES.get(operator, 2) for operator in LAUNCHES}
    asked = [f"{operator}={number}" for operator, number in cases.items()]
    printed = run("interpret_kernels.py", *asked, TRITON_INTERPRET="1")
    assert printed.splitlines() == [f"{operator}: {2 * number} cases" for operator, number in cases.items()]
