"""Decoding problems: what records say, and that it is what the engine gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lopa_lab.paper.runs.decode_problems import decode_problems, encode_problem
from lopa_lab.paper.tasks.task_problem import TaskProblem
from lopa_lab.word_problems import held_out_problems
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError

QUESTIONS = [problem.question for problem in held_out_problems(5, 3)]
PROBLEMS = [
    TaskProblem(f"p/{index}", ({"role": "user", "content": question},))
    for index, question in enumerate(QUESTIONS)
]

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine.from_config(
        Config.load("demo", {"model": {"max_model_len": 512, "max_num_seqs": 3}})
    ) as opened:
        yield opened


def test_records_are_what_the_engine_gives(engine: LocalEngine) -> None:
    settings = engine.config.decode.replace(max_new_tokens=64)
    results = engine.generate(QUESTIONS, settings, trace=True)
    records = list(decode_problems(engine, PROBLEMS, settings))
    assert [record.problem_id for record in records] == ["p/0", "p/1", "p/2"]
    for record, result in zip(records, results, strict=True):
        assert (record.text, record.tokens, record.steps) == (result.text, result.tokens, result.steps)
        assert (record.forwards, record.finish_reason) == (result.forwards, result.finish_reason)
        mask = engine.vocabulary.mask_token_id
        decided = sum(token != mask for token in result.trace[-1].canvas)
        assert sum(record.fills) == record.canvas_tokens == decided >= record.tokens
        assert len(record.fills) == record.steps
        assert record.seconds is not None and record.first_step_seconds is not None
        assert 0 < record.first_step_seconds < record.seconds
        assert record.scores is None and not record.truncated_prompt


def test_problems_in_flight_together_have_the_same_answers_and_no_times(engine: LocalEngine) -> None:
    settings = engine.config.decode.replace(max_new_tokens=64)
    alone = {record.problem_id: record for record in decode_problems(engine, PROBLEMS, settings)}
    together = list(decode_problems(engine, PROBLEMS, settings, concurrency=3))
    assert len(together) == 3
    for record in together:
        without_times = {"seconds": None, "first_step_seconds": None}
        assert record == alone[record.problem_id].model_copy(update=without_times)
        assert record.tps is None and record.tpf == alone[record.problem_id].tpf


def test_a_prompt_that_is_too_long_loses_its_beginning(engine: LocalEngine) -> None:
    settings = engine.config.decode.replace(max_new_tokens=64)
    long = TaskProblem("long", "ignore this. " * 200 + QUESTIONS[0])
    (record,) = decode_problems(engine, [long], settings)
    assert record.truncated_prompt and record.prompt_tokens == 512 - 64
    with pytest.raises(SettingsError, match="leaves no room"):
        list(decode_problems(engine, [long], settings.replace(max_new_tokens=512)))


def test_how_problems_are_asked(engine: LocalEngine) -> None:
    assert engine.tokenizer is not None
    chat = encode_problem(engine, PROBLEMS[0])
    assert chat == engine.encode(QUESTIONS[0])
    begun = encode_problem(engine, TaskProblem("p", PROBLEMS[0].prompt, prefix="So "))
    assert begun == chat + engine.tokenizer.encode("So ", add_special_tokens=False)
    text = encode_problem(engine, TaskProblem("p", QUESTIONS[0]))
    assert text == engine.encode(QUESTIONS[0], raw=True) != chat
    if engine.tokenizer.bos_token_id is None:
        with pytest.raises(SettingsError, match="no BOS token"):
            encode_problem(engine, TaskProblem("p", QUESTIONS[0]), add_bos=True)
    else:
        with_bos = encode_problem(engine, TaskProblem("p", QUESTIONS[0]), add_bos=True)
        assert with_bos == [engine.tokenizer.bos_token_id, *text]


def test_answers_end_before_a_stop_string() -> None:
    problem = TaskProblem("p", "text", stop=("\n\n", "Question:"))
    assert problem.cut("4\n\nQuestion: 5") == "4"
    assert problem.cut("4 Question: 5\n\n") == "4 "
    assert problem.cut("4") == "4"
