"""client.decisions of OpenAI's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from lopa_ray import ChoiceQuestion, LocalEngine, PredicateQuestion, ScoreQuestion
from support.server_process import ServerProcess

pytestmark = pytest.mark.clients

INPUT = "Tom has 6 pens, and Mia has 9 pens."
QUESTIONS: Any = [
    {"type": "predicate", "name": "more", "instructions": "Does Mia have more pens than Tom?"},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "Who has the most pens?"}],
        "choices": [{"value": "true"}, {"value": True, "description": "it is so"}, {"value": "Mia"}],
    },
    {
        "type": "score",
        "instructions": "How many pens does Tom have?",
        "levels": [{"label": "few"}, {"label": "many"}],
    },
]


@pytest.fixture
def ai(server: ServerProcess) -> openai.OpenAI:
    return server.openai(max_retries=0)


def test_a_decision(ai: openai.OpenAI) -> None:
    decision = ai.decisions.create(model="demo", input=INPUT, questions=QUESTIONS)
    predicate, choice, score = decision.answers
    assert predicate.type == "predicate" and predicate.name == "more" and 0 < predicate.probability < 1
    assert choice.type == "choice" and choice.name is None
    assert [value.value for value in choice.probabilities] == ["true", True, "Mia"]
    assert sum(value.probability for value in choice.probabilities) == pytest.approx(1)
    assert choice.choice in ("true", True, "Mia") and 0 <= choice.confidence <= 1
    assert score.type == "score" and [level.value for level in score.probabilities] == [0, 1]
    assert score.score == pytest.approx(score.probabilities[1].probability)
    usage = decision.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_it_is_what_one_process_computes(ai: openai.OpenAI) -> None:
    questions = [
        PredicateQuestion("Is it so?"),
        ChoiceQuestion("Who?", ["Tom", "Mia"]),
        ScoreQuestion("?", ["a", "b"]),
    ]
    with LocalEngine.from_pretrained("demo") as engine:
        here = engine.decide(INPUT, questions)
    there = ai.decisions.create(
        model="demo",
        input=INPUT,
        questions=[
            {"type": "predicate", "instructions": "Is it so?"},
            {"type": "choice", "instructions": "Who?", "choices": [{"value": "Tom"}, {"value": "Mia"}]},
            {"type": "score", "instructions": "?", "levels": [{"label": "a"}, {"label": "b"}]},
        ],
    )
    predicate, choice, score = there.answers
    assert predicate.probability == here.answers[0].probability
    assert [value.probability for value in choice.probabilities] == [*here.answers[1].probabilities.values()]
    assert score.score == here.answers[2].score


def test_an_input_that_was_read_before_is_cached(ai: openai.OpenAI) -> None:
    given = f"{INPUT} This is said once."
    first, second = (ai.decisions.create(model="demo", input=given, questions=QUESTIONS) for _ in range(2))
    assert first.answers == second.answers
    assert first.usage.input_tokens_details.cached_tokens == 0
    assert first.usage.input_tokens_details.cache_write_tokens > 0
    assert (
        second.usage.input_tokens_details.cached_tokens == first.usage.input_tokens_details.cache_write_tokens
    )


def test_400_questions_about_a_chat(ai: openai.OpenAI) -> None:
    chat: Any = [
        {"role": "system", "content": "Count well."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": INPUT}, {"type": "input_json", "data": {"a": 1}}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
    ]
    questions: Any = [
        {"type": "predicate", "name": "n", "instructions": f"Does Mia have more than {at} pens?"}
        for at in range(400)
    ]
    decision = ai.decisions.create(model="demo", input=chat, questions=questions)
    alone = ai.decisions.create(model="demo", input=chat, questions=questions[123:124])
    assert len(decision.answers) == 400 and decision.answers[123] == alone.answers[0]


def test_errors_are_400(ai: openai.OpenAI) -> None:
    wrong: Any = [
        (INPUT, [], "questions"),
        (INPUT, [{**QUESTIONS[1], "choices": [{"value": "a"}, {"value": "a"}]}], "questions[0].choices[1]"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}],
                }
            ],
            QUESTIONS,
            "input[0].content[0].image_url",
        ),
        (f"{INPUT} <|mask|>", QUESTIONS, "input"),
        ("pens " * 3000, QUESTIONS, "input"),
    ]
    for given, questions, field in wrong:
        with pytest.raises(openai.BadRequestError) as raised:
            ai.decisions.create(model="demo", input=given, questions=questions)
        assert raised.value.param == field, raised.value
    with pytest.raises(openai.NotFoundError):
        ai.decisions.create(model="other", input=INPUT, questions=QUESTIONS)
    with pytest.raises(openai.AuthenticationError):
        ai.with_options(api_key="wrong").decisions.create(model="demo", input=INPUT, questions=QUESTIONS)


def test_many_at_once_get_what_one_gets(server: ServerProcess) -> None:
    async def decide() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.api_key) as ai:
            calls = [
                ai.decisions.create(model="demo", input=f"{INPUT} {at % 4}", questions=QUESTIONS)
                for at in range(24)
            ]
            return await asyncio.gather(*calls)

    decisions = asyncio.run(decide())
    for at, decision in enumerate(decisions):
        assert decision.answers == decisions[at % 4].answers


def test_the_list_of_models(ai: openai.OpenAI) -> None:
    assert [model.id for model in ai.models.list()] == ["demo"]
