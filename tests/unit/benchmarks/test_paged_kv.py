"""The arithmetic behind `docs/memory.md`."""

from __future__ import annotations

from paged_kv import TOKENS_PER_STEP, WINDOW, attention, lengths, paged, steps


def test_branches_share_full_pages_and_nothing_else() -> None:
    assert WINDOW == 64
    assert paged(96, 16, 1) == 96 + 64
    assert paged(96, 16, 4) == 96 + 4 * 64
    assert paged(100, 16, 1) == 96 + 80  # 4 positions and the window begin in the middle of a page
    assert paged(100, 64, 8) == 64 + 8 * 128


def test_every_request_is_in_flight_from_prompt_to_end() -> None:
    requests = lengths(20)
    assert all(60 <= prompt <= 900 and 64 <= answer <= 512 for prompt, answer in requests)
    taken = list(steps(requests, 3))
    assert all(1 <= len(step) <= 3 for step in taken)
    wanted = sum(-(-answer // TOKENS_PER_STEP) for _, answer in requests)
    assert sum(map(len, taken)) == wanted


def test_each_way_attends_for_every_branch() -> None:
    for page, gathers in ((None, 0), (16, 3), (16, 1)):
        attention(100, 3, page, gathers)()
