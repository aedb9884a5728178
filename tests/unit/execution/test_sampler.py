"""From logits to tokens, probabilities and ranking scores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lopa_ray.execution.sampler import SamplerOutput
from lopa_ray.protocol.keyed_random import keyed_uniform
from lopa_ray.protocol.sampling_params import SamplingParams
from support.scoring import score_rows

VOCAB, MASK, EOS = 40, 39, 38
BANNED = torch.zeros(VOCAB, dtype=torch.bool)
BANNED[MASK] = True
BANNED[33:36] = True  # padding of the vocabulary


def rows(n: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(n, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def score(logits: Tensor, sampling: SamplingParams, step: int = 1, first: int = 0) -> SamplerOutput:
    positions = list(range(first, first + len(logits)))
    return score_rows(logits, positions, step, sampling, BANNED, EOS)


def reference(row: Tensor, top_p: float | None, top_k: int | None, temperature: float) -> np.ndarray:
    """Probabilities as published: temperature, then the nucleus, then the top k, each renormalised."""
    logits = row.double().numpy() / (temperature or 1.0)
    keep = np.ones(VOCAB, bool)
    order = np.argsort(-logits)
    if top_p is not None and top_p < 1:
        p = np.exp(logits - logits.max())
        total = np.cumsum(p[order] / p.sum())
        keep[order[1:][total[:-1] > top_p]] = False
    if top_k is not None and top_k < VOCAB:
        kept = np.where(keep, logits, -np.inf)
        keep &= kept >= np.sort(kept)[-top_k]
    p = np.where(keep, np.exp(logits - logits.max()), 0)
    return p / p.sum()


FILTERS = [(None, None), (0.8, None), (1.0, None), (None, 5), (0.9, 3), (0.3, 20), (None, 100)]


@pytest.mark.parametrize(("top_p", "top_k"), FILTERS)
@pytest.mark.parametrize("ranking", ["probability", "margin", "neg_entropy"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_scores_follow_their_formulas(top_p, top_k, ranking, temperature):
    logits = rows(30)
    scored = score(logits, SamplingParams(temperature, top_p, top_k, seed=3, ranking=ranking))
    nucleus_held_one = 0
    for row, token, probability, value in zip(
        logits, scored.tokens.tolist(), scored.probabilities.tolist(), scored.scores.tolist(), strict=True
    ):
        p = reference(row, top_p, top_k, temperature)
        allowed = np.where(BANNED.numpy(), 0, p)
        nucleus_held_one += bool(allowed.any())
        if allowed.any():
            assert allowed[token] > 0
            if temperature == 0:
                assert token == allowed.argmax()
        assert probability == pytest.approx(p[token], abs=1e-6)
        best = np.sort(allowed)
        expected = {
            "probability": p[token],
            "margin": best[-1] - best[-2],
            "neg_entropy": (p * np.log(p + 1e-10)).sum(),
        }[ranking]
        assert value == pytest.approx(expected, abs=2e-5)
    assert nucleus_held_one >= 20


def test_confidences_may_have_a_temperature_of_their_own():
    logits = rows(20)
    plain = score(logits, SamplingParams())
    shaped = score(logits, SamplingParams(confidence_temperature=0.5))
    assert torch.equal(shaped.tokens, plain.tokens)
    expected = [
        reference(row, None, None, 0.5)[t] for row, t in zip(logits, plain.tokens.tolist(), strict=True)
    ]
    assert shaped.probabilities.tolist() == pytest.approx(expected, abs=1e-6)

    drawn = score(logits, SamplingParams(2.0, seed=5))
    model = score(logits, SamplingParams(2.0, seed=5, confidence_temperature=1.0))
    assert torch.equal(model.tokens, drawn.tokens)
    assert (drawn.tokens != plain.tokens).any()
    expected = [
        reference(row, None, None, 1.0)[t] for row, t in zip(logits, drawn.tokens.tolist(), strict=True)
    ]
    assert model.probabilities.tolist() == pytest.approx(expected, abs=1e-6)


def test_top_k_may_come_before_top_p():
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1] + [1e-9] * (VOCAB - 4)]))
    for k_first, expected in (
        (False, 0.4 / 0.9),
        (True, 0.4 / 0.7),
    ):  # 0.4 + 0.3 of the best three is above 0.75
        scored = score(logits, SamplingParams(top_p=0.75, top_k=3, top_k_first=k_first))
        assert scored.probabilities.item() == pytest.approx(expected, abs=1e-6)


def test_precision_decides_between_what_is_nearly_equal():
    logits = torch.zeros(2, VOCAB)
    logits[:, 0] = torch.tensor([30.0, 31.0])
    by_precision = {p: score(logits, SamplingParams(precision=p)) for p in ("float16", "float32", "float64")}
    first, second = by_precision["float32"].scores.tolist()
    assert first == second == 1.0
    first, second = by_precision["float64"].scores.tolist()
    assert first < second < 1.0
    near = torch.zeros(2, VOCAB)
    near[:, 0] = torch.tensor([5.0, 5.0005])
    assert len(set(score(near, SamplingParams()).scores.tolist())) == 2
    assert len(set(score(near, SamplingParams(precision="float16")).scores.tolist())) == 1
    plain, half = score(near, SamplingParams()), score(near, SamplingParams(precision="float16"))
    assert torch.equal(plain.logprobs, half.logprobs)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(0.01), SamplingParams(1.0), SamplingParams(5.0, top_k=2)]
)
@pytest.mark.parametrize("lead", [0.0, 1e4])
def test_forbidden_tokens_keep_their_probability_and_are_never_chosen(sampling, lead):
    """Whatever lead the mask and padding have, however low the temperature."""
    logits = rows(64)
    logits[:, MASK] = logits.max() + lead
    logits[:, 34] = logits.max() - 1
    scored = score(logits, sampling)
    assert not BANNED[scored.tokens].any()
    scaled = (logits / (sampling.temperature or 1.0)).double()
    chosen = scaled.softmax(-1).gather(1, scored.tokens[:, None])[:, 0]
    if sampling.top_k is None:
        torch.testing.assert_close(scored.probabilities.double(), chosen, atol=1e-6, rtol=0)
    if sampling.temperature in (0.0, 0.01) and sampling.top_k is None:
        best = logits.masked_fill(BANNED, -math.inf).argmax(-1)
        share = (scored.tokens == best).float().mean()
        assert share == 1.0 if sampling.temperature == 0 else share > 0.8


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("ranking", ["probability", "margin"])
def test_a_nucleus_of_forbidden_tokens_alone(temperature, ranking):
    """The best allowed token is taken (or one drawn), with the probability 0 that the nucleus gives it."""
    logits = rows(16)
    logits[:, MASK] = 30.0
    for top_p, top_k in ((0.5, None), (None, 1)):
        scored = score(logits, SamplingParams(temperature, top_p, top_k, ranking=ranking))
        assert not BANNED[scored.tokens].any()
        assert scored.probabilities.tolist() == scored.scores.tolist() == [0.0] * 16
        if temperature == 0:
            assert scored.tokens.tolist() == logits.masked_fill(BANNED, -math.inf).argmax(-1).tolist()


@pytest.mark.parametrize(("top_p", "top_k"), FILTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("confidence_temperature", [None, 2.0])
def test_draws_are_of_the_distribution_that_is_drawn_from(
    top_p, top_k, temperature, confidence_temperature
) -> None:
    """Among allowed tokens alone, also where filters leave none of these; whatever shapes confidences."""
    logits = rows(12)
    logits[:4, MASK] = 30.0
    sampling = SamplingParams(temperature, top_p, top_k, seed=3, draws=True)
    scored = score(logits, replace(sampling, confidence_temperature=confidence_temperature))
    plain = score(logits, replace(sampling, draws=False, confidence_temperature=confidence_temperature))
    assert torch.equal(scored.tokens, plain.tokens) and scored.draws is not None and plain.draws is None
    for row, token, draw in zip(logits, scored.tokens.tolist(), scored.draws.tolist(), strict=True):
        for filters in ((top_p, top_k), (None, None)):
            expected = np.where(BANNED, 0, reference(row, *filters, temperature))
            if expected.sum() > 1e-30:
                break
        expected /= expected.sum()
        positive = expected[expected > 0]
        assert draw == pytest.approx(
            [math.log(expected[token]), -(positive * np.log(positive)).sum()], rel=1e-4, abs=1e-5
        )


@pytest.mark.parametrize("temperature", [0.0, 0.02, 1.0])
def test_eos_waits_for_min_tokens(temperature):
    logits = rows(20)
    logits[:, EOS], logits[:, 7] = 100.0, 50.0
    scored = score(logits, SamplingParams(temperature, no_eos_before=12, stop_token_ids=(7,)), first=5)
    assert not {7, EOS} & {*scored.tokens[:7].tolist()}
    assert scored.tokens[7:].tolist() == [EOS] * 13
    assert not BANNED[scored.tokens].any()
    assert scored.probabilities[7:].tolist() == [1.0] * 13


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-10, 1e-5])
def test_tiny_temperatures_choose_the_most_likely(temperature):
    logits = rows(16)
    scored = score(logits, SamplingParams(temperature))
    assert scored.tokens.tolist() == score(logits, SamplingParams()).tokens.tolist()
    assert scored.probabilities.isfinite().all()


# Draws


def test_a_draw_depends_on_seed_step_and_position_alone():
    logits = rows(1, scale=0.5).expand(24, VOCAB)
    sampling = SamplingParams(1.0, seed=5)
    whole = score(logits, sampling, step=4, first=100).tokens
    for picked in ([3], [20, 4], list(range(23, -1, -1))):
        part = score_rows(logits[picked], [100 + i for i in picked], 4, sampling, BANNED, EOS)
        assert part.tokens.tolist() == whole[picked].tolist()
    assert score(logits, sampling, step=5, first=100).tokens.tolist() != whole.tolist()
    assert score(logits, SamplingParams(1.0, seed=6), step=4, first=100).tokens.tolist() != whole.tolist()
    assert score(logits, sampling, step=4, first=101).tokens[:-1].tolist() == whole[1:].tolist()
    assert len(set(whole.tolist())) > 5


def test_draws_follow_the_distribution():
    n = 20_000
    logits = rows(1, seed=1, scale=1.0)
    p = torch.where(BANNED, 0, logits[0].softmax(-1))
    p = p / p.sum()
    for steps in (range(1, 2), range(1, n + 1, n // 4)):  # over positions, and over steps
        tokens = torch.cat(
            [
                score(logits.expand(n // len(steps), VOCAB), SamplingParams(1.0), step=step).tokens
                for step in steps
            ]
        )
        seen = torch.bincount(tokens, minlength=VOCAB) / len(tokens)
        # Four standard deviations.
        assert (seen - p).abs().max() < 4 * math.sqrt(0.25 / n)


def test_keyed_numbers_are_uniform_and_independent():
    values = np.array([[keyed_uniform(s, t, p) for p in range(40)] for s in range(10) for t in range(1, 21)])
    assert values.min() >= 0
    assert values.max() < 1
    assert len(np.unique(values)) == values.size
    counts, _ = np.histogram(values, 10, (0, 1))
    assert np.abs(counts - values.size / 10).max() < 4 * math.sqrt(values.size * 0.09)
    flat = values.reshape(-1) - 0.5
    for lag in (1, 40, 800):  # neighbouring positions, steps, seeds
        assert abs(np.corrcoef(flat[:-lag], flat[lag:])[0, 1]) < 0.05
    assert 0 <= keyed_uniform(2**63 - 1, 2**31, 2**31) < 1


# Rows


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(top_logprobs=3),
        SamplingParams(ranking="margin", top_p=0.9),
        SamplingParams(ranking="neg_entropy", top_k=5, top_logprobs=1),
        SamplingParams(0.8, 0.95, 10, seed=2, ranking="neg_entropy"),
    ],
)
def test_a_row_has_the_same_bits_alone_and_among_others(sampling):
    for vocab in (VOCAB, 1003):
        banned = torch.zeros(vocab, dtype=torch.bool)
        banned[-1] = True
        logits = torch.randn(70, vocab, generator=torch.Generator().manual_seed(1)) * 2
        whole = score_rows(logits, list(range(70)), 1, sampling, banned, vocab - 2)
        for i in (0, 13, 69):
            alone = score_rows(logits[i : i + 1], [i], 1, sampling, banned, vocab - 2)
            for name in ("tokens", "probabilities", "logprobs", "scores", "top_tokens", "top_logprobs"):
                assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[i]), name


def test_top_logprobs_are_of_the_plain_softmax():
    logits = rows(10)
    logits[:, MASK] = 20.0
    scored = score(logits, SamplingParams(0.5, 0.5, 2, top_logprobs=4))
    expected, tokens = logits.log_softmax(-1).topk(4)
    assert scored.top_tokens.tolist() == tokens.tolist()
    torch.testing.assert_close(scored.top_logprobs, expected)
    assert (scored.top_tokens[:, 0] == MASK).all()
    chosen = logits.log_softmax(-1).gather(1, scored.tokens[:, None])[:, 0]
    torch.testing.assert_close(scored.logprobs, chosen)


def test_low_precision_logits_are_scored_in_fp32():
    logits = rows(10).bfloat16()
    for sampling in (SamplingParams(), SamplingParams(0.7, ranking="neg_entropy")):
        low, high = score(logits, sampling), score(logits.float(), sampling)
        assert low.probabilities.dtype == torch.float32
        assert torch.equal(low.probabilities, high.probabilities)
        assert torch.equal(low.scores, high.scores)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.8, seed=3),
        SamplingParams(top_k=2, ranking="margin"),
        SamplingParams(ranking="neg_entropy"),
    ],
)
def test_choices_change_the_token_and_no_probability(sampling: SamplingParams) -> None:
    logits = rows(24)
    allowed_tokens = torch.rand(24, VOCAB, generator=torch.Generator().manual_seed(1)) < 0.2
    allowed_tokens[:, 5] = True
    allowed_tokens[:8] = True
    positions = list(range(24))
    free = score_rows(logits, positions, 1, sampling, BANNED, EOS)
    bound = score_rows(logits, positions, 1, sampling, BANNED, EOS, allowed_tokens)
    assert all(
        allowed_tokens[row, token] and not BANNED[token] for row, token in enumerate(bound.tokens.tolist())
    )
    assert torch.equal(bound.tokens[:8], free.tokens[:8])
    assert torch.equal(bound.scores[:8], free.scores[:8])
    same = bound.tokens == free.tokens
    assert torch.equal(bound.probabilities[same], free.probabilities[same])
    plain = logits.log_softmax(-1).gather(1, bound.tokens[:, None])[:, 0]
    assert torch.allclose(bound.logprobs, plain, atol=1e-6)


def test_sure_of_what_is_ruled_out_is_not_sure_of_what_is_left() -> None:
    logits, allowed_tokens = torch.zeros(1, VOCAB), torch.ones(1, VOCAB, dtype=torch.bool)
    logits[0, 1], allowed_tokens[0, 1] = 30.0, False
    for ranking in ("probability", "margin", "neg_entropy"):
        sampling = SamplingParams(ranking=ranking)
        free = score_rows(logits, [0], 1, sampling, BANNED, EOS)
        bound = score_rows(logits, [0], 1, sampling, BANNED, EOS, allowed_tokens)
        assert bound.scores[0] < free.scores[0] - 0.9


def test_equal_logits_go_to_the_lowest_ids() -> None:
    logits = torch.zeros(4, VOCAB)
    banned = torch.zeros(VOCAB, dtype=torch.bool)
    banned[:2] = True
    for sampling in (SamplingParams(top_logprobs=4), SamplingParams(top_p=0.5, top_k=3, top_logprobs=4)):
        scored = score_rows(logits, list(range(4)), 1, sampling, banned, EOS)
        assert scored.tokens.tolist() == [2] * 4
        assert scored.top_tokens.tolist() == [[0, 1, 2, 3]] * 4


def test_nothing_is_certain_in_a_row_of_nan() -> None:
    logits = rows(4)
    logits[2] = torch.nan
    scored = score(logits, SamplingParams(top_logprobs=2))
    assert scored.scores.isnan().tolist() == [row == 2 for row in range(4)]
