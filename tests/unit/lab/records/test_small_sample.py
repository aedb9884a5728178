"""Which scores are said to be over too few problems."""

from __future__ import annotations

import pytest

from lopa_lab.records.small_sample import small_sample_note


@pytest.mark.parametrize(
    ("problems", "percent", "error"),
    [(20, None, 11), (20, 50.0, 11), (4, 100.0, 22), (100, 50.0, 5), (1, 0.0, 49)],
)
def test_few_problems_have_a_large_error(problems: int, percent: float | None, error: int) -> None:
    note = small_sample_note(problems, percent)
    assert note is not None and note.startswith(f"{problems} problem")
    assert note.endswith(f"too few: a score over them has a standard error of about {error} points.")


@pytest.mark.parametrize(("problems", "percent"), [(0, None), (160, 50.0), (100, 95.0), (1319, None)])
def test_enough_problems_need_no_note(problems: int, percent: float | None) -> None:
    assert small_sample_note(problems, percent) is None
