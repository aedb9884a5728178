"""Numbers with a digit too many or too few, in the training of the demo model."""

from __future__ import annotations

import pytest
import torch

import demo_noise
from demo_noise import misfit_numbers

ROW = list("=12 a =7 b 12 ...")


@pytest.mark.parametrize(("share", "changed"), [(1.0, True), (0.0, False)])
def test_one_number_of_the_window_gets_a_column_more_or_less(
    monkeypatch: pytest.MonkeyPatch, share: float, changed: bool
) -> None:
    monkeypatch.setattr(demo_noise, "MISFIT_SHARE", share)
    ids = torch.tensor([[ord(character) for character in ROW]] * 60)
    result = torch.zeros_like(ids, dtype=torch.bool)
    repeated = result.clone()
    result[:, [1, 2, 7]] = True
    repeated[:, [11, 12]] = True
    in_window = torch.zeros(60, 14, dtype=torch.bool)
    in_window[:, 4:] = True
    rows, _, _, misfit = misfit_numbers(ids, result, repeated, in_window, torch.Generator().manual_seed(1))
    texts = {"".join(map(chr, row)) for row in rows.tolist()}
    assert bool(misfit.any()) is changed
    if not changed:
        assert texts == {"".join(ROW)}
        return
    lengthened = {"=12 a =77 b 12 ..", "=12 a =7 b 112 ..", "=12 a =7 b 122 .."}
    shortened = {"=12 a =7 b 1 ....", "=12 a =7 b 2 ...."}
    assert texts <= lengthened | shortened and texts & lengthened and texts & shortened
    for row, marked in zip(rows, misfit, strict=True):
        text = "".join(chr(token) for token in row[marked])
        assert text in ("77", "112", "122", "1", "2")
