"""The short programs in examples/ do what they say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.paths import ROOT
from support.processes import subprocess_environment

pytestmark = pytest.mark.medium

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "decide.py",
            ["Mia has 90 pens. 0.", "forwards in 2 steps"],
            marks=pytest.mark.slow,
        ),
        ("decode_locally.py", ["4 branches: ", "1 branches: ", "#### 27"]),
        pytest.param("same_answers.py", ["16 of 16 answers in batches of 16"], marks=pytest.mark.slow),
        # Those that start a Ray of their own take long.
        pytest.param("decode_on_a_group.py", ["#### 35", "#### 27", "#### 31"], marks=pytest.mark.nightly),
        pytest.param("decode_with_asyncio.py", ["#### 35", "#### 27", "#### 31"], marks=pytest.mark.nightly),
        pytest.param(
            "batch_with_ray_data.py", ["#### 35", "#### 31", "not decoded: "], marks=pytest.mark.nightly
        ),
        pytest.param(
            "scale_while_decoding.py",
            ["3 workers", "2 workers", "answers as before: yes"],
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_example(name: str, expected: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for text in expected:
        assert text in done.stdout
