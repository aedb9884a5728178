"""The arithmetic behind `docs/memory.md`."""

from __future__ import annotations

import torch

from lopa_lab.bench.pages import (
    TOKENS_PER_STEP,
    WINDOW,
    attention_step,
    paged_positions,
    request_lengths,
    simulate_steps,
)


def test_branches_share_full_pages_and_nothing_else() -> None:
    assert WINDOW == 64
    assert paged_positions(96, 16, 1) == 96 + 64
    assert paged_positions(96, 16, 4) == 96 + 4 * 64
    assert paged_positions(100, 16, 1) == 96 + 80  # 4 positions and the window begin in the middle of a page
    assert paged_positions(100, 64, 8) == 64 + 8 * 128


def test_every_request_is_in_flight_from_prompt_to_end() -> None:
    requests = request_lengths(20)
    assert all(60 <= prompt <= 900 and 64 <= answer <= 512 for prompt, answer in requests)
    simulated = list(simulate_steps(requests, 3))
    assert all(1 <= len(step) <= 3 for step in simulated)
    wanted = sum(-(-answer // TOKENS_PER_STEP) for _, answer in requests)
    assert sum(map(len, simulated)) == wanted


def test_pages_that_are_gathered_once_or_per_branch_give_the_same_rows() -> None:
    rows = []
    for gathers in (3, 1):
        torch.manual_seed(0)
        rows.append(attention_step(100, 3, 16, gathers)())
    assert torch.equal(*rows)
    torch.manual_seed(0)
    assert attention_step(100, 3, None, 0)().shape == rows[0].shape
