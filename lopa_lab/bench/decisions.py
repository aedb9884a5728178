"""`lopa bench decisions`: what many questions about one input cost, beside one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from lopa_lab.bench.clock import Clock, TimedCall
from lopa_lab.bench.measurements import Measurements, Row
from lopa_ray.decoding.answer_slot import AnswerSlot
from lopa_ray.decoding.decision_session import DecisionSession, QuestionTokens
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestFailure

SEED = 11


def measure_decisions(
    name: str,
    settings: dict[str, Any],
    numbers: Sequence[int],
    prefixes: Sequence[str],
    *,
    input_len: int,
    question_len: int,
    values: int,
    threads: int,
    repeats: int,
) -> Measurements:
    """`numbers` of questions of `question_len` tokens each, with `values` of one token, about `input_len` tokens, with
    `prefixes` input and joint. Tokens are drawn at random. `name` is the model's, `settings` those of `config.model`.

    Raises what `LocalEngine.from_config` raises, and what ends a request.
    """
    torch.set_num_threads(threads)
    room = {"max_num_seqs": 1, "max_model_len": input_len + question_len + 1}
    engine = LocalEngine.from_config(Config.parse({"model": {**settings, **room}}))
    draw = random.Random(SEED)
    end = engine.vocabulary.eos_token_id
    usable = [
        token
        for token in range(engine.vocabulary.size)
        if token not in (end, engine.vocabulary.mask_token_id)
    ]
    given = draw.choices(usable, k=input_len)
    slot = AnswerSlot.of([[token] for token in draw.sample(usable, values)], end)
    questions = [
        QuestionTokens(tuple(draw.choices(usable, k=question_len)), slot) for _ in range(max(numbers))
    ]

    def decide(number: int, prefix: str) -> None:
        session = DecisionSession(
            given,
            questions[:number],
            engine.vocabulary,
            attention=engine.config.decode.prompt_attention,
            joint=prefix == "joint",
        )
        for event in engine.events([session]):
            if isinstance(event, RequestFailure):
                raise event.error

    cases = [(prefix, number) for prefix in prefixes for number in numbers]
    clock = Clock(engine.runner.device)
    calls = [TimedCall(partial(decide, number, prefix)) for prefix, number in cases]
    times = dict(zip(cases, clock.medians_ms(calls, repeats), strict=True))
    rows: list[Row] = [
        {
            "prefix": prefix,
            "questions": number,
            "ms": times[prefix, number],
            "ms per question": times[prefix, number] / number,
            "of one by itself %": 100
            * times[prefix, number]
            / number
            / (times[prefix, numbers[0]] / numbers[0]),
        }
        for prefix, number in cases
    ]
    return Measurements(
        ("model", "prefix", "questions"),
        [{"model": name, **row} for row in rows],
        f"{clock.kind.capitalize()} of a whole request in one process, medians of {repeats}. An input of {input_len} "
        f"tokens, questions of {question_len} with {values} values of one token, drawn at random. Nothing is stored "
        f"between requests. The last column compares the time per question with that of {numbers[0]}.",
    )
