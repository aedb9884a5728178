"""Which scores are said to be over too few problems."""

from __future__ import annotations

import pytest

from lopa_lab.records.small_sample import small_sample_note


@pytest.mark.parametrize(("problems", "error"), [(20, 11), (100, 5), (1, 50)])
def test_few_problems_have_a_large_error(problems: int, error: int) -> None:
    note = small_sample_note(problems)
    assert note is not None and note.startswith(f"{problems} problem")
    assert note.endswith(f"too few: a score over them has a standard error of about {error} points.")


@pytest.mark.parametrize("problems", [0, 160, 1319])
def test_enough_problems_need_no_note(problems: int) -> None:
    assert small_sample_note(problems) is None
