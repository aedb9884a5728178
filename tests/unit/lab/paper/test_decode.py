"""Decoding problems: what records say, and that it is what the engine gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lopa_lab.paper.runs.decode_problems import decode_problems, encode_problem, suffix_of
from lopa_lab.paper.tasks.task import BenchmarkProblem
from lopa_lab.word_problems import held_out_problems
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError

QUESTIONS = [problem.question for problem in held_out_problems(5, 3)]
PROBLEMS = [
    BenchmarkProblem(f"p/{index}", ({"role": "user", "content": question},))
    for index, question in enumerate(QUESTIONS)
]

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine.from_config(
        Config.load("demo", {"model": {"max_model_len": 512, "max_num_seqs": 3}})
    ) as made:
        yield made


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
    alone = {each.problem_id: each for each in decode_problems(engine, PROBLEMS, settings)}
    together = list(decode_problems(engine, PROBLEMS, settings, concurrency=3))
    assert len(together) == 3
    for record in together:
        without_times = {"seconds": None, "first_step_seconds": None}
        assert record == alone[record.problem_id].model_copy(update=without_times)
        assert record.tps is None and record.tpf == alone[record.problem_id].tpf


def test_a_prompt_that_is_too_long_loses_its_beginning(engine: LocalEngine) -> None:
    settings = engine.config.decode.replace(max_new_tokens=64)
    long = BenchmarkProblem("long", "ignore this. " * 200 + QUESTIONS[0])
    (record,) = decode_problems(engine, [long], settings)
    assert record.truncated_prompt and record.prompt_tokens == 512 - 64
    with pytest.raises(SettingsError, match="leaves no room"):
        list(decode_problems(engine, [long], settings.replace(max_new_tokens=512)))


def test_how_problems_are_asked(engine: LocalEngine) -> None:
    assert engine.tokenizer is not None
    chat = encode_problem(engine, PROBLEMS[0])
    assert chat == engine.encode(QUESTIONS[0])
    begun = encode_problem(engine, BenchmarkProblem("p", PROBLEMS[0].prompt, prefix="So "))
    assert begun == chat + engine.tokenizer.encode("So ", add_special_tokens=False)
    text = encode_problem(engine, BenchmarkProblem("p", QUESTIONS[0]))
    assert text == engine.encode(QUESTIONS[0], raw=True) != chat
    if engine.tokenizer.bos_token_id is None:
        with pytest.raises(SettingsError, match="no BOS token"):
            encode_problem(engine, BenchmarkProblem("p", QUESTIONS[0]), add_bos=True)
    else:
        with_bos = encode_problem(engine, BenchmarkProblem("p", QUESTIONS[0]), add_bos=True)
        assert with_bos == [engine.tokenizer.bos_token_id, *text]


def test_a_problem_with_a_suffix_is_filled_in(engine: LocalEngine) -> None:
    settings = engine.config.decode.replace(max_new_tokens=16)
    problem = BenchmarkProblem("p", "1 + 1 = ", suffix=" and 2 + 2 = 4.")
    (record,) = decode_problems(engine, [problem], settings)
    result = engine.generate(problem.prompt, settings, suffix=problem.suffix, raw=True)
    assert (record.text, record.tokens, record.steps) == (result.text, result.tokens, result.steps)
    assert record.prompt_tokens == result.prompt_tokens and not record.truncated_prompt
    # A prompt that is too long makes room for hole and suffix.
    assert engine.tokenizer is not None
    behind = len(engine.tokenizer.encode_later_part(problem.suffix))
    long = BenchmarkProblem("long", "ignore this. " * 200, suffix=problem.suffix)
    (record,) = decode_problems(engine, [long], settings)
    assert record.truncated_prompt and record.prompt_tokens == 512 - 16
    ended = suffix_of(engine, problem, add_eos=True)
    assert engine.suffix_length(ended, parse_special=True) == behind + 1
    assert suffix_of(engine, PROBLEMS[0], add_eos=True) == ""


def test_answers_end_before_a_stop_string() -> None:
    problem = BenchmarkProblem("p", "text", stop=("\n\n", "Question:"))
    assert problem.cut("4\n\nQuestion: 5") == "4"
    assert problem.cut("4 Question: 5\n\n") == "4 "
    assert problem.cut("4") == "4"
