"""Recorded decodes, repeated with all kernels of a step in Triton's interpreter. Each takes half a minute or more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.paths import PROGRAMS, ROOT

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")

DENSE = "add_rms_norm, commit_rows, rotate_qkv, row_scores, silu_mul, slot_attention"
SPARSE = (
    "add_rms_norm, choose_experts, commit_rows, grouped_matmul, rotate_qkv, row_scores, silu_mul, slot_attention, "
    "sort_rows, weighted_sum"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "kernels"),
    [
        ("lopa_cases.jsonl", DENSE),
        ("d2f_llada_cases.jsonl", DENSE),
        ("sdar/sdar_generate_cases.jsonl", DENSE),
        ("sdar_moe/sdar_moe_generate_cases.jsonl", SPARSE),
        ("llada2/llada2_generate_cases.jsonl", SPARSE),
        ("llada2/llada21_generate_cases.jsonl", SPARSE),
        ("mbd/mbd_llada21_cases.jsonl", SPARSE),
        ("dmax/dmax_generate_cases.jsonl", SPARSE),
        ("nemotron/nemotron_generate_cases.jsonl", DENSE),
    ],
)
def test_a_decode_is_as_recorded(file: str, kernels: str) -> None:
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests"))
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "interpret_decodes.py"), file, "1"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{file}: 1 cases; {kernels}\n"
