"""The loop that learns (examples/rl): its objective, the replay of answers, updates, and runs that were ended."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learn import BLOCK_SIZE, RunConfig, learn
from lopa_lab.word_problems.generator import is_held_out
from lopa_ray import LocalEngine
from lopa_ray.execution.model_files import checkpoint_folder
from replay import decisions_of, log_probabilities
from rollouts import Group, draw_problems, evaluate, roll_out
from tracerl import advantages, objective
from trainer import ReplayError, Trainer

torch.set_num_threads(1)


# The objective


def test_advantages_are_z_scores_of_a_group() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    wanted = torch.tensor([[math.sqrt(3), *[-1 / math.sqrt(3)] * 3], [0.0] * 4])
    assert torch.allclose(advantages(rewards), wanted)


def test_the_objective_by_hand() -> None:
    """Two tokens of a good answer, the first of which is clipped, and one of a bad answer, which is not."""
    ratios = (1.5, 0.9, 1.5)
    old = torch.tensor([-1.0, -2.0, -0.5])
    value = objective(old + torch.tensor(ratios).log(), old, torch.tensor([2.0, 2.0, -1.0]))
    kl = sum(1 / ratio - 1 + math.log(ratio) for ratio in ratios)
    assert value.item() == pytest.approx(1.2 * 2 + 0.9 * 2 - 1.5 - 0.01 * kl, rel=1e-5)


def test_at_the_weights_that_decoded_the_gradient_is_the_advantage() -> None:
    old, advantage = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([2.0, 2.0, -1.0])
    logprobs = old.clone().requires_grad_()
    objective(logprobs, old, advantage).backward()
    assert torch.allclose(logprobs.grad, advantage)


# With the model of the package

SMALL = RunConfig("", seed=6, updates=2, problems=6, answers=4, eval_every=1, eval_problems=4, workers=1)


def engine_of(config: RunConfig) -> LocalEngine:
    return LocalEngine.from_config(config.engine_config())


def trainer_of(engine: LocalEngine, run_dir: Path) -> Trainer:
    return Trainer(checkpoint_folder(engine.config.model), run_dir, BLOCK_SIZE, 2, 1e-4, SMALL.updates, 1)


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return engine_of(SMALL)


@pytest.fixture(scope="module")
def groups(engine: LocalEngine) -> list[Group]:
    return roll_out(engine, SMALL.seed, 1, SMALL.problems, SMALL.answers)


def test_rollouts_are_answers_of_their_own_with_rewards(groups: list[Group]) -> None:
    assert len(groups) == SMALL.problems
    for group in groups:
        assert len({tuple(answer.replay.step_map) for answer in group.answers}) > 1
        assert len(group.answers) == len(group.rewards) == SMALL.answers
    assert {reward for group in groups for reward in group.rewards} == {0.0, 1.0}


def test_a_forward_gives_the_recorded_log_probabilities(
    engine: LocalEngine, tmp_path: Path, groups: list[Group]
) -> None:
    model = trainer_of(engine, tmp_path).model
    tokens = 0
    for group in groups:
        for decisions in decisions_of(group.answers, BLOCK_SIZE, engine.vocabulary.mask_token_id):
            assert torch.allclose(
                log_probabilities(model, decisions, BLOCK_SIZE), decisions.recorded, rtol=0, atol=1e-4
            )
            tokens += len(decisions.token)
    assert tokens == sum(len(answer.token_ids) for group in groups for answer in group.answers)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens"), [("2+2=?", 24), ("Tom has 6 bags. There are 7 cards in each.", 9)]
)
def test_short_prompts_and_cut_blocks_replay(
    engine: LocalEngine, tmp_path: Path, prompt: str, max_new_tokens: int
) -> None:
    answer = engine.generate(
        prompt, temperature=1.0, trajectory=True, max_new_tokens=max_new_tokens, ignore_eos=True
    ).trajectory
    assert len(answer.token_ids) == max_new_tokens
    assert (len(answer.prompt_token_ids) + max_new_tokens) % BLOCK_SIZE
    model = trainer_of(engine, tmp_path).model
    for decisions in decisions_of([answer], BLOCK_SIZE, engine.vocabulary.mask_token_id):
        assert torch.allclose(
            log_probabilities(model, decisions, BLOCK_SIZE), decisions.recorded, rtol=0, atol=1e-4
        )


def test_no_problem_is_learned_from_and_evaluated() -> None:
    problems = draw_problems(random.Random(3), 40)
    assert len(set(problems)) == 40
    assert not any(is_held_out(problem.question) for problem in problems)


def test_an_evaluation_draws_answers_too(engine: LocalEngine) -> None:
    figures = evaluate(engine, seed=2, count=12)
    assert figures["sampled"] < figures["greedy"]


def test_an_update_changes_all_weights(engine: LocalEngine, tmp_path: Path, groups: list[Group]) -> None:
    trainer = trainer_of(engine, tmp_path)
    before = trainer.weights()
    figures = trainer.update(groups)
    assert trainer.version == 1 and figures["replay_differs"] < 1e-4
    assert [weights["lr"] for weights in trainer.optimizer.param_groups] == [1e-4]
    assert figures["learned_from"] == sum(0 < sum(group.rewards) < SMALL.answers for group in groups) > 0
    changed = trainer.weights()
    trainer.update([])
    assert [weights["lr"] for weights in trainer.optimizer.param_groups] == [5e-5]
    assert all(not torch.equal(changed[name], before[name]) for name in before)


def test_what_does_not_replay_changes_nothing(
    engine: LocalEngine, tmp_path: Path, groups: list[Group]
) -> None:
    trainer = trainer_of(engine, tmp_path)
    before = trainer.weights()
    first, *others = groups[0].answers
    wrong = replace(first, raw_logprobs=[first.raw_logprobs[0] - 1e-3, *first.raw_logprobs[1:]])
    later = replace(first, weight_version=1)
    no_number = replace(first, raw_logprobs=[math.nan, *first.raw_logprobs[1:]])
    for answer in (wrong, no_number, later):
        with pytest.raises(ReplayError):
            trainer.update([*groups[1:], replace(groups[0], answers=[answer, *others])])
    assert trainer.version == 0
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.weights().items())


class KilledError(Exception):
    """What ends a run in a test."""


def numbers(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in line.items() if name != "minutes"} for line in lines]


@pytest.mark.medium
def test_a_run_that_was_ended_goes_on_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(SMALL)
    whole = learn(engine, trainer_of(engine, tmp_path / "whole"), SMALL)
    assert [line["update"] for line in whole] == [0, 1, 2] and engine.weight_version == 2

    engine = engine_of(SMALL)
    trainer = trainer_of(engine, tmp_path / "ended")
    update = trainer.update

    def update_and_die(groups: list[Group]) -> dict[str, float]:
        figures = update(groups)
        if trainer.version == 2:
            raise KilledError
        return figures

    monkeypatch.setattr(trainer, "update", update_and_die)
    with pytest.raises(KilledError):
        learn(engine, trainer, SMALL)
    engine = engine_of(SMALL)
    trainer = trainer_of(engine, tmp_path / "ended")
    assert [line["update"] for line in trainer.log()] == [0, 1]
    assert numbers(learn(engine, trainer, SMALL)) == numbers(whole)
    assert (tmp_path / "ended" / "log.jsonl").read_text().count("\n") == 3


def test_the_exported_model_decodes_as_the_trainer(tmp_path: Path, groups: list[Group]) -> None:
    engine = engine_of(SMALL)
    trainer = trainer_of(engine, tmp_path)
    trainer.update(groups)
    trainer.export()
    engine.update_weights(trainer.weights())
    exported = engine_of(replace(SMALL, model=str(tmp_path / "model")))
    prompt = "Tom has 6 bags. There are 7 cards in each. How many cards does Tom have?"
    drawn = {"temperature": 1.0, "trajectory": True}
    assert (
        exported.generate(prompt, **drawn).trajectory.raw_logprobs
        == engine.generate(prompt, **drawn).trajectory.raw_logprobs
    )
