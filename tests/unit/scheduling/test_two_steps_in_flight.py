"""Two steps in flight at once while workers and whole groups are lost, without Ray: the bits of every report stay
the same."""

from __future__ import annotations

import pytest

from support.chaos_group import decode_with_losses
from support.decode_kinds import KINDS, OFTEN
from support.marks import also_long
from support.tiny_model import load_tiny_model

MODEL = load_tiny_model()


@pytest.mark.parametrize("kind", [*OFTEN, *also_long(*(kind for kind in KINDS if kind not in OFTEN))])
def test_two_steps_in_flight_change_no_bit_whoever_is_lost(kind: str) -> None:
    counts = decode_with_losses(MODEL, 1, [kind], 30, overlap=True)
    assert min(counts[key] for key in ("overlapped", "lost", "cancelled")) > 0


@pytest.mark.parametrize("seed", [1, *also_long(2, 3, 4, 5, 6, 7, 8, 9)])
@pytest.mark.parametrize("stored", [0, 40])
def test_two_steps_in_flight_change_no_bit_of_mixtures(seed: int, stored: int) -> None:
    counts = decode_with_losses(MODEL, seed, [*KINDS], 30, stored, overlap=True)
    assert min(counts[key] for key in ("overlapped", "lost", "cancelled")) > 0
