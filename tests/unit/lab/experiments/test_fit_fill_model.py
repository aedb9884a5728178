"""The model that proposes drafts is fitted to decodes: the same each time, more likely than before, and it loads."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cluster.cli import app
from lopa_lab.bench.decoding import results_of
from lopa_lab.experiments.run.fill_examples import BlockExample, ObservedVerifiedSession
from lopa_lab.experiments.run.fit_fill_model import (
    FillNetwork,
    FittedFillModel,
    fill_models_text,
    fit_in_rounds,
)
from lopa_lab.experiments.run.setup import FIT_SEED
from lopa_lab.word_problems import held_out_problems
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.unmasking_rules import RuleBlock
from lopa_ray.decoding.verified.evaluated_state import EvaluatedState
from lopa_ray.decoding.verified.fill_model import FillModel, features, report_features
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.sampling_params import Ranking
from lopa_ray.protocol.step_report import BranchReport

pytestmark = pytest.mark.slow

THRESHOLD = 0.9
SETTINGS = LopaSettings(
    max_new_tokens=96, num_branches=8, lookahead="verified", confidence_threshold=THRESHOLD
)


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.from_config(Config.load("demo"))


def fitted_to_decodes(engine: LocalEngine) -> list[FittedFillModel]:
    return list(fit_in_rounds(engine, held_out_problems(FIT_SEED, 4), [SETTINGS], rounds=2))


def test_a_fit_is_deterministic_and_raises_the_likelihood(engine: LocalEngine) -> None:
    fits = fitted_to_decodes(engine)
    assert fits == fitted_to_decodes(engine)
    for fitted in fits:
        assert fitted.blocks > 10
        assert fitted.after > fitted.before + 0.5
    assert fits[0].parameters != fits[1].parameters


def test_drafts_of_a_fitted_model_change_no_answer(engine: LocalEngine) -> None:
    """And they save steps on problems that the model was not fitted to."""
    model = FillModel(dict(fitted_to_decodes(engine)[-1].parameters))
    questions = [problem.question for problem in held_out_problems(FIT_SEED + 1, 3)]
    one = results_of(engine, [engine.create_session(text, SETTINGS.of_one_branch()) for text in questions])
    sessions = [engine.create_session(text, SETTINGS) for text in questions]
    verified = results_of(engine, [ObservedVerifiedSession(session, model, []) for session in sessions])
    assert [result.token_ids for result in verified] == [result.token_ids for result in one]
    assert sum(result.steps for result in verified) < 0.8 * sum(result.steps for result in one)


def shapes(parameters: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(values) for name, values in parameters.items()}


def test_the_command_writes_what_the_package_loads(tmp_path: Path) -> None:
    path = tmp_path / "fill_models.json"
    few = ("--problems", "1", "--rounds", "1", "--set", "decode.max_new_tokens=48")
    done = CliRunner().invoke(app, ["experiment", "fit-drafts", *few, "--output", str(path)])
    assert done.exit_code == 0, done.output
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) == len(get_args(Ranking)) + 2
    shipped = json.loads(files("lopa_ray.decoding.verified").joinpath("fill_models.json").read_text())
    written = json.loads(text)
    assert list(written) == list(get_args(Ranking))
    for ranking, parameters in written.items():
        assert shapes(parameters) == shapes(shipped[ranking])
        FillModel(parameters)
        assert f"{ranking}, round 1: " in done.output
    assert fill_models_text(written) == text


REPORT = BranchReport(
    step=1,
    branch=0,
    positions=np.arange(10, 13, dtype=np.int32),
    tokens=np.arange(3, dtype=np.int32),
    probabilities=np.array([0.5, 0.8, 0.95]),
    logprobs=np.zeros(3, np.float32),
    scores=np.array([-1.0, -0.5, -0.1]),
    top_tokens=np.zeros((3, 0), np.int32),
    top_logprobs=np.zeros((3, 0), np.float32),
)


def test_a_schedule_fills_as_many_positions_as_it_says() -> None:
    model, state = FillModel.load("probability"), EvaluatedState(None, REPORT, frozenset())
    for least, sets in ((0, {()}), (1, {(10,), (11,), (12,)}), (2, {(10, 11), (10, 12), (11, 12)})):
        blocks = [RuleBlock(REPORT.positions.tolist(), inf, least)]
        proposed = {tuple(at for at, _ in fills): p for p, fills in model.fill_sets(blocks, state, [13], 9)}
        assert sum(p for chosen, p in proposed.items() if chosen not in sets) < 0.01
        assert sum(proposed.values()) > 0.1  # less than 1 where tokens may change


@pytest.mark.parametrize("least", [1, 0])
def test_the_fill_model_computes_the_probabilities_that_were_fitted(least: int) -> None:
    """In torch the likelihood of each fill set, in numpy the fill sets with their probabilities."""
    count, report = len(REPORT.positions), REPORT
    blocks = [RuleBlock(report.positions.tolist(), THRESHOLD, least)]
    state = EvaluatedState(None, report, frozenset())
    table = features(blocks, report_features(state, THRESHOLD), range(count), [13])
    torch.manual_seed(3)
    network = FillNetwork(torch.from_numpy(table))
    sets = FillModel(network.parameters_of_model()).fill_sets(blocks, state, [13], 8)

    def likelihood(passes: tuple[bool, ...], fallback: int = -1) -> float:
        example = BlockExample(table, np.array(passes), fallback, np.ones(count, bool))
        return network.log_likelihoods([example]).exp().item()

    expected = {} if least else {(): likelihood((False,) * count)}
    for passes in product((False, True), repeat=count):
        if any(passes):
            members = tuple((10 + at, at) for at, does in enumerate(passes) if does)
            expected[members] = likelihood(passes)
            if least and sum(passes) == 1:
                nothing = (False,) * count
                expected[members] += likelihood(nothing, fallback=passes.index(True))
    assert {fills: probability for probability, fills in sets} == pytest.approx(expected, abs=2e-3)
