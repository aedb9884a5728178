"""Log-likelihoods of given tokens, against full logits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import comb

import pytest
import torch

from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.likelihood_session import MaskDraws, draw_key
from lopa_ray.engine.config import Config
from lopa_ray.engine.likelihood import LikelihoodRequest, LogLikelihood, log_likelihoods
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import PromptError, PromptTooLongError, ScoreError, SettingsError
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.row_scores import SCORE_COLUMNS
from support.paths import MODELS
from support.thread_tensor_parallel import engine_in_two_shards
from support.tiny_model import load_tiny_model

NAMES = ("llada-tiny-3l", "dream-tiny-2l")
"""Logits of the second one are shifted."""

MASK = 127
PAIRS = [([5, 6, 7], [8, 9, 10]), ([5], [8]), ([1, 2], [*range(10, 31)]), ([9] * 11, [126, 3, 126, 126, 8])]
"""Targets may have EOS (126) anywhere."""

torch.set_num_threads(1)


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    return LocalEngine.from_config(config_of(request.param))


def config_of(name: str, **model: object) -> Config:
    return Config.parse({"model": {"path": str(MODELS / name), "max_model_len": 64, **model}})


def values(
    engine: LocalEngine, pairs: Sequence[tuple[list[int], list[int]]] = PAIRS, **options: int
) -> list[float]:
    requests = [LikelihoodRequest(prefix, target) for prefix, target in pairs]
    likelihoods = dict(log_likelihoods(engine, requests, **options))
    assert all(isinstance(likelihood, LogLikelihood) for likelihood in likelihoods.values())
    return [likelihoods[index].value for index in range(len(pairs))]


def masked_log_probability(
    engine: LocalEngine, prefix: list[int], target: list[int], mask: Sequence[bool]
) -> float:
    """Summed over the masked positions, by one forward over everything."""
    ids = prefix + [MASK if masked else token for token, masked in zip(target, mask, strict=True)]
    rows = engine.runner.logits(ids).double().log_softmax(-1)
    first = len(prefix) - engine.vocabulary.shifted
    return sum(rows[first + at, target[at]].item() for at, masked in enumerate(mask) if masked)


def exact_bound(engine: LocalEngine, prefix: list[int], target: list[int]) -> float:
    """The expectation, over all masks."""
    length = len(target)
    total = 0.0
    for mask in product((False, True), repeat=length):
        if any(mask):
            chance = 1 / length / comb(length, sum(mask))
            total += chance * length / sum(mask) * masked_log_probability(engine, prefix, target, mask)
    return total


@pytest.mark.parametrize("mc_num", [1, 32])
def test_the_estimate_is_equation_6_over_its_masks(engine: LocalEngine, mc_num: int) -> None:
    for (prefix, target), value in zip(PAIRS, values(engine, mc_num=mc_num, seed=3), strict=True):
        draws = MaskDraws.of(len(target), mc_num, draw_key(3, prefix, target))
        expected = sum(
            weight * masked_log_probability(engine, prefix, target, mask.tolist())
            for mask, weight in zip(draws.masks, draws.weights, strict=True)
        )
        assert value == pytest.approx(expected, abs=1e-4)


@pytest.mark.medium
def test_the_estimates_expectation_is_the_bound(engine: LocalEngine) -> None:
    prefix, target = [5, 6, 7], [126, 3, 8]
    expected = exact_bound(engine, prefix, target)
    (many,) = values(engine, [(prefix, target)], mc_num=8000)
    assert many == pytest.approx(expected, abs=0.2)
    few = [values(engine, [(prefix, target)], mc_num=4, seed=seed)[0] for seed in range(60)]
    spread = torch.tensor(few).std().item()
    assert sum(few) / len(few) == pytest.approx(expected, abs=4 * spread / len(few) ** 0.5 + 1e-4)


@pytest.mark.medium
def test_the_same_seed_has_the_same_draws(engine: LocalEngine) -> None:
    assert values(engine, seed=1) == values(engine, seed=1) != values(engine, seed=2)
    assert values(engine, PAIRS[::-1], seed=1) == values(engine, seed=1)[::-1]


@pytest.mark.medium
def test_neither_steps_nor_slots_change_a_bit(engine: LocalEngine) -> None:
    name = engine.config.model.path.rpartition("/")[2]
    for slots in (1, 250):  # 16 masks of a request in a step, and few
        other = LocalEngine.from_config(config_of(name, max_num_seqs=slots))
        assert values(other) == values(engine)


@pytest.mark.parametrize("name", NAMES)
def test_two_shards_give_the_same(name: str) -> None:
    whole = LocalEngine.from_config(config_of(name))
    shards = engine_in_two_shards(config_of(name))
    assert values(shards, mc_num=6) == pytest.approx(values(whole, mc_num=6), abs=1e-4)


# Greedy decoding


def greedy_tokens(engine: LocalEngine, prefix: list[int], length: int) -> list[int]:
    """Each step decides the position that is surest of its most likely token."""
    ids, shift = prefix + [MASK] * length, engine.vocabulary.shifted
    while MASK in ids:
        probabilities = engine.runner.logits(ids).softmax(-1)
        probabilities[:, MASK] = 0.0
        masked = [at for at, token in enumerate(ids) if token == MASK]
        best = max(masked, key=lambda at: probabilities[at - shift].max().item())
        ids[best] = int(probabilities[best - shift].argmax())
    return ids[len(prefix) :]


def test_whether_greedy_decoding_gives_the_target(engine: LocalEngine) -> None:
    requests, expected = [], []
    for prefix in ([5, 6, 7], [9] * 11, [3]):
        greedy = greedy_tokens(engine, prefix, 6)
        other = [*greedy[:3], (greedy[3] + 1) % 100, *greedy[4:]]
        for target in (greedy, other):
            requests.append(LikelihoodRequest(prefix, target, check_greedy=True))
            expected.append(target == greedy)
    requests.append(LikelihoodRequest([3], [4, 5]))
    likelihoods = dict(log_likelihoods(engine, requests, mc_num=1))
    assert [likelihoods[index].is_greedy for index in range(7)] == [*expected, None]
    for index in range(0, 6, 2):
        assert likelihoods[index].steps == 7 and likelihoods[index + 1].steps <= 7
    assert likelihoods[6].steps == 1


# Refusals


@pytest.mark.parametrize(
    ("prefix", "target", "error"),
    [
        ([], [3], PromptError),
        ([3], [MASK], PromptError),
        ([3], [4, 128], PromptError),
        ([3] * 60, [4] * 5, PromptTooLongError),
    ],
)
def test_wrong_tokens_are_refused(
    engine: LocalEngine, prefix: list[int], target: list[int], error: type[Exception]
) -> None:
    for check_greedy in (False, True):
        with pytest.raises(error):
            next(log_likelihoods(engine, [LikelihoodRequest(prefix, target, check_greedy)]))


def test_wrong_settings_are_refused(engine: LocalEngine) -> None:
    with pytest.raises(SettingsError, match="mc_num"):
        values(engine, mc_num=0)
    config = engine.config.replace(decode=BlockDiffusionSettings())
    with pytest.raises(SettingsError, match="block_diffusion"):
        values(LocalEngine(config, engine.runner, None))


class BrokenRunner(BranchRunner):
    """Says NaN of all rows."""

    def score(self, packing: Packing, columns: StepColumns[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        scores = super().score(packing, columns, rows)
        scores.view(-1, SCORE_COLUMNS)[:, 1:] = torch.nan
        return scores


def test_an_error_ends_its_own_request_once() -> None:
    config = config_of("llada-tiny-3l")
    runner = BrokenRunner(load_tiny_model("llada-tiny-3l"), max_num_seqs=4, max_model_len=64)
    requests = [
        LikelihoodRequest([3], [4, 5], check_greedy=True),
        LikelihoodRequest([3], [], check_greedy=True),
    ]
    results = list(log_likelihoods(LocalEngine(config, runner, None), requests))
    assert results[0] == (1, LogLikelihood(0.0, True, 0, 0))  # of no tokens
    assert results[1][0] == 0 and isinstance(results[1][1], ScoreError)
