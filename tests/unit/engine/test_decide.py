"""engine.decide: from texts to answers, with the model in the package."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_ray import (
    AsyncEngine,
    ChoiceAnswer,
    ChoiceQuestion,
    Config,
    DecisionResult,
    DecisionSettings,
    DecisionTask,
    LocalEngine,
    Option,
    PredicateAnswer,
    PredicateQuestion,
    PromptError,
    PromptTooLongError,
    ScoreQuestion,
    SettingsError,
)
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.decisions.defaults import read_decision_defaults
from lopa_ray.decisions.questions import Question
from lopa_ray.engine.decision_factory import new_decision
from lopa_ray.errors import CheckpointError
from support.thread_tensor_parallel import engine_in_two_shards
from support.tiny_model import CANVAS_MODEL, tiny_engine

torch.set_num_threads(1)

INPUT = "Tom has 6 pens, and Mia has 9 pens."
QUESTIONS: list[Question] = [
    PredicateQuestion("Does Mia have more pens than Tom?", name="more"),
    ChoiceQuestion("Who has the most pens?", ["Tom", "Mia", True, "true"]),
    ScoreQuestion("How many pens does Tom have?", ["fewer than 5", "5 to 9", Option("many", "10 or more")]),
    ChoiceQuestion("How many pens are there?", [str(number) for number in range(30)]),
]


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.from_pretrained("demo", max_model_len=512, max_num_seqs=4)


def test_every_question_has_its_answer(engine: LocalEngine) -> None:
    result = engine.decide(INPUT, QUESTIONS)
    assert [answer.name for answer in result.answers] == ["more", None, None, None]
    predicate, choice, score, many = result.answers
    assert isinstance(predicate, PredicateAnswer) and 0 < predicate.probability < 1
    assert isinstance(choice, ChoiceAnswer) and list(choice.probabilities) == ["Tom", "Mia", True, "true"]
    for answer in (choice, score, many):
        assert not isinstance(answer, PredicateAnswer)
        assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert result.steps == 2 and result.output_tokens > len(QUESTIONS) and result.cached_tokens == 0


def test_messages_and_a_text_are_inputs(engine: LocalEngine) -> None:
    text = engine.decide(INPUT, QUESTIONS[:1])
    chat = engine.decide([{"role": "user", "content": INPUT}], QUESTIONS[:1])
    system = engine.decide(
        [{"role": "system", "content": "Count."}, {"role": "user", "content": INPUT}], QUESTIONS[:1]
    )
    assert text.log_likelihoods == chat.log_likelihoods != system.log_likelihoods
    assert (
        engine.decide(INPUT, ["Is it so?"]).answers
        == engine.decide(INPUT, [PredicateQuestion("Is it so?")]).answers
    )


@pytest.mark.medium
def test_joint_questions_are_computed_with_the_input(engine: LocalEngine) -> None:
    apart, joint = (engine.decide(INPUT, QUESTIONS, prefix=prefix) for prefix in ("input", "joint"))
    assert joint.steps == 1 and joint.log_likelihoods != apart.log_likelihoods
    alone = engine.decide(INPUT, QUESTIONS[1:2], {"prefix": "joint"})
    assert alone.log_likelihoods == (joint.log_likelihoods[1],)


def test_rotations_are_averaged(engine: LocalEngine) -> None:
    question = ChoiceQuestion("Who has the most pens?", ["Tom", "Mia", "Ben"])
    turned = ChoiceQuestion("Who has the most pens?", ["Mia", "Ben", "Tom"])
    three = engine.decide(INPUT, [question], rotations=9)
    first, second = (engine.decide(INPUT, [asked]) for asked in (question, turned))
    assert len(three.log_likelihoods[0]) == 3
    assert three.log_likelihoods[0][0] == first.log_likelihoods[0][0]
    mia, ben, tom = second.log_likelihoods[0][0]
    assert three.log_likelihoods[0][1] == (tom, mia, ben)
    assert isinstance(three.answers[0], ChoiceAnswer)
    assert sum(three.answers[0].probabilities.values()) == pytest.approx(1.0)


@pytest.mark.medium
def test_a_stored_input_is_reported_and_changes_nothing() -> None:
    config = Config.parse({"model": {"max_model_len": 256, "prefix_cache": "exact"}})
    storing = LocalEngine.from_config(config)
    first, second = (storing.decide(INPUT, QUESTIONS[:2]) for _ in range(2))
    assert first.log_likelihoods == second.log_likelihoods
    length = len(new_decision(storing, DecisionTask(INPUT, QUESTIONS)).session.prompt)
    assert (first.cached_tokens, first.saved_tokens) == (0, length)
    assert (second.cached_tokens, second.saved_tokens) == (length, 0)


def test_many_inputs_are_answered_as_each_alone(engine: LocalEngine) -> None:
    tasks = [DecisionTask(f"{INPUT} It is {day}.", QUESTIONS[:2]) for day in ("Monday", "Friday", "Sunday")]
    results = dict(engine.decide_all(tasks))
    for index, task in enumerate(tasks):
        alone, result = engine.decide(task.input, task.questions), results[index]
        assert isinstance(result, DecisionResult) and result.log_likelihoods == alone.log_likelihoods


@pytest.mark.medium
def test_two_shards_give_the_same(engine: LocalEngine) -> None:
    shards = engine_in_two_shards(engine.config)
    shards.tokenizer = engine.tokenizer
    (values,), (expected,) = (each.decide(INPUT, QUESTIONS[1:2]).log_likelihoods for each in (shards, engine))
    assert values[0] == pytest.approx(expected[0], abs=1e-3)


@pytest.mark.medium
def test_an_asynchronous_engine_answers_alike(engine: LocalEngine) -> None:
    class Wrapped(AsyncEngine):
        async def events(self, sessions: Any) -> Any:
            for event in engine.events(sessions):
                yield event

    wrapped = Wrapped(engine.config, engine.vocabulary, engine.tokenizer)
    result = asyncio.run(wrapped.decide(INPUT, QUESTIONS))
    assert result.answers == engine.decide(INPUT, QUESTIONS).answers


# Settings


def test_a_checkpoint_recommends_settings(tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    file.write_text(json.dumps({"prefix": "input", "choice_temperature": 1.5}))
    defaults = read_decision_defaults(tmp_path)
    assert defaults.temperatures == {"choice": 1.5}
    config = Config.parse({"decisions": {"rotations": 2}}).with_decision_defaults(defaults.settings)
    assert config.decisions == DecisionSettings(prefix="input", rotations=2)
    assert Config.parse(config.given()).decisions == config.decisions
    for wrong in ({"prefix": "whole"}, {"score_temperature": 0}):
        file.write_text(json.dumps(wrong))
        with pytest.raises(CheckpointError, match=r"decisions\.json.*got"):
            read_decision_defaults(tmp_path)


def test_a_checkpoints_temperatures_shape_the_answers(tmp_path: Path) -> None:
    shutil.copytree(DEMO_MODEL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "decisions.json").write_text(json.dumps({"prefix": "input", "predicate_temperature": 1000.0}))
    (decided,) = LocalEngine.from_pretrained(tmp_path).decide(INPUT, ["Does Tom have 6 pens?"]).answers
    assert isinstance(decided, PredicateAnswer)
    assert decided.probability == pytest.approx(0.5, abs=0.01)


# Refusals


@pytest.mark.parametrize(
    ("given", "questions", "field"),
    [
        (f"{INPUT} <|mask|>", ["Is it so?"], "input"),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": "<|mask|>"}],
            ["?"],
            "input[1].content",
        ),
        (INPUT, ["Is it so?", "Is it <|mask|>?"], "questions[1]"),
        (INPUT, [ChoiceQuestion("?", ["a", "<|mask|>"])], "questions[0]"),
        (INPUT, [ChoiceQuestion("?", [])], "questions[0].choices"),
        (INPUT, [], "questions"),
    ],
)
def test_what_is_wrong_is_named(engine: LocalEngine, given: Any, questions: Any, field: str) -> None:
    with pytest.raises(PromptError) as raised:
        engine.decide(given, questions)
    assert raised.value.setting == field
    assert pickle.loads(pickle.dumps(raised.value)).setting == field


def test_what_is_too_long_is_named(engine: LocalEngine) -> None:
    with pytest.raises(PromptTooLongError) as raised:
        engine.decide("pens " * 600, QUESTIONS)
    assert raised.value.setting == "input"
    with pytest.raises(PromptTooLongError) as raised:
        engine.decide(INPUT, ["Is it so?", "pens " * 600])
    assert raised.value.setting == "questions[1]"
    bounded = LocalEngine.from_pretrained("demo", max_model_len=512, max_num_batched_tokens=240)
    with pytest.raises(SettingsError, match="max_num_batched_tokens"):
        bounded.decide("pens " * 260, QUESTIONS)


def test_a_model_without_a_tokenizer_or_a_mask_is_refused() -> None:
    with pytest.raises(PromptError, match="tokenizer"):
        tiny_engine("llada-tiny-3l").decide(INPUT, QUESTIONS)
    with pytest.raises((SettingsError, PromptError)):
        LocalEngine.from_pretrained(CANVAS_MODEL, max_model_len=64).decide(INPUT, QUESTIONS)
