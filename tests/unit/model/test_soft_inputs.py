"""Soft inputs: mixtures of two embeddings, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lopa_ray.model.soft_inputs import embed_softly

MASK = 2


def embedding(dtype: torch.dtype = torch.float32) -> nn.Embedding:
    """Token 0 lies at (2, 0), token 1 at (0.3, -0.7), the mask token at (0, 1)."""
    return nn.Embedding.from_pretrained(torch.tensor([[2.0, 0.0], [0.3, -0.7], [0.0, 1.0]], dtype=dtype))


def test_a_mixture_has_the_direction_of_the_sum_and_the_mean_length() -> None:
    ids, weights = torch.tensor([0, 0, 0]), torch.tensor([0.5, 0.25, 0.0])
    half, quarter, none = embed_softly(embedding(), ids, weights, MASK)
    # 0.5 (2, 0) + 0.5 (0, 1) = (1, 0.5), of length √1.25; the mean length is 0.5 · 2 + 0.5 · 1.
    torch.testing.assert_close(half, torch.tensor([1.0, 0.5]) * (1.5 / math.sqrt(1.25)))
    torch.testing.assert_close(quarter, torch.tensor([0.5, 0.75]) * (1.25 / math.hypot(0.5, 0.75)))
    torch.testing.assert_close(none, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_of_1_is_the_plain_embedding_whatever_is_beside_it(dtype: torch.dtype) -> None:
    embed, ids = embedding(dtype), torch.tensor([1, 0, MASK])
    plain = embed_softly(embed, ids, None, MASK)
    soft = embed_softly(embed, ids, torch.tensor([1.0, 0.3, 1.0], dtype=torch.float64), MASK)
    assert soft.dtype is plain.dtype is dtype
    assert torch.equal(soft[[0, 2]], plain[[0, 2]]) and not torch.equal(soft[1], plain[1])


def test_a_mask_is_its_embedding_at_any_weight() -> None:
    soft = embed_softly(embedding(), torch.tensor([MASK]), torch.tensor([0.4]), MASK)
    torch.testing.assert_close(soft, torch.tensor([[0.0, 1.0]]))
