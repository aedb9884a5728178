"""Log-likelihoods of values: against full logits, and bit for bit in any company."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.decision_session import DecisionSession
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.question_tokens import QuestionTokens
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.scheduling.prefix_index import PrefixIndex
from support.decision_cases import ATTENTIONS, Logprobs, by_question, decision, random_question, run_group
from support.in_process_group import InProcessGroup
from support.tiny_model import load_tiny_model

pytestmark = [pytest.mark.medium, pytest.mark.usefixtures("one_thread")]

MASK, EOS = 127, 126
PROMPT = [5, 9, 33, 71, 8, 8, 60, 2, 14, 77, 31]


def alone(session: DecisionSession, model_name: str, workers: int = 1) -> Logprobs:
    return run_group(InProcessGroup(load_tiny_model(model_name), workers), [session])[0]


def log_softmax(runner: BranchRunner, logits: torch.Tensor) -> torch.Tensor:
    """Over the tokens that can be generated."""
    logits = logits.double()
    logits[:, runner.vocabulary.mask_token_id] = -torch.inf
    config = runner.model.config
    logits[:, config.unpadded_vocab_size or config.vocab_size :] = -torch.inf
    return logits.log_softmax(-1)


def direct(
    runner: BranchRunner,
    prompt: Sequence[int],
    question: QuestionTokens,
    attention: PromptAttention,
    joint: bool,
) -> list[float]:
    """The chain of each value, by one forward per token of each value over all logits."""
    values = []
    begin = 0 if joint else attention.stored_end(len(prompt))
    for value in question.values:
        total = 0.0
        for at, token in enumerate(value):
            if begin:
                causal = attention.kind == "causal"
                segments = None if causal else attention.segments(0, begin, begin)
                runner.logits(prompt[:begin], segments=segments, to_stage=(range(begin),), causal=causal)
            slot = [*value[:at], *[runner.vocabulary.mask_token_id] * (question.slot_length - at)]
            ids = [*prompt[begin:], *question.asked, *slot]
            asked_stop = len(prompt) + len(question.asked)
            segments = attention.segments(begin, asked_stop, begin + len(ids))
            rows = log_softmax(runner, runner.logits(ids, start=begin, segments=segments))
            total += rows[asked_stop - begin + at - runner.vocabulary.shifted, token].item()
        values.append(total)
    return values


@pytest.mark.parametrize(
    ("name", "joint"), [*((name, False) for name in ATTENTIONS), ("llada-tiny-3l", True)]
)
def test_values_are_chains_of_full_logits(name: str, joint: bool) -> None:
    model, draw = load_tiny_model(name), random.Random(7)
    questions = [random_question(draw, EOS) for _ in range(5)]
    session = decision(model, PROMPT, questions, ATTENTIONS[name], joint=joint)
    runner = BranchRunner(model, max_num_seqs=1, max_model_len=64)
    expected = [direct(runner, PROMPT, question, ATTENTIONS[name], joint) for question in questions]
    values = by_question(session, alone(session, name))
    assert [pytest.approx(wanted, abs=1e-4) for wanted in expected] == values


@pytest.mark.parametrize("name", ["sdar-tiny-3l", "nemotron-tiny-3l"])
def test_an_exact_prefix_gives_what_the_whole_gives(name: str) -> None:
    draw = random.Random(3)
    questions = [random_question(draw, EOS) for _ in range(3)]
    model = load_tiny_model(name)
    both = [
        alone(decision(model, PROMPT, questions, ATTENTIONS[name], joint=joint), name)
        for joint in (False, True)
    ]
    for stored, joint in zip(*both, strict=True):
        assert stored == pytest.approx(joint, rel=2e-6, abs=1e-5)


@pytest.mark.parametrize(("name", "workers"), [*zip(ATTENTIONS, (2, 1, 3, 2), strict=True)])
def test_no_question_and_no_neighbour_changes_a_bit(name: str, workers: int) -> None:
    model, draw = load_tiny_model(name), random.Random(workers)
    questions = [random_question(draw, EOS) for _ in range(9)]
    single = {
        question: alone(decision(model, PROMPT, [question], ATTENTIONS[name]), name) for question in questions
    }
    order = draw.sample(questions, 7)
    session = decision(model, PROMPT, order, ATTENTIONS[name], max_step_rows=draw.choice([40, 1000]))
    other = decision(model, PROMPT[::-1], questions, ATTENTIONS[name])
    settings = LopaSettings(max_new_tokens=20, block_size=4, num_branches=3)
    neighbours = [other, new_session([4, 5], settings, session.vocabulary)]
    together = run_group(InProcessGroup(model, workers), [*neighbours, session])[-1]
    assert together == tuple(logprobs for question in order for logprobs in single[question])


@pytest.mark.parametrize("name", ["dream-tiny-2l", "sdar-tiny-3l", "nemotron-tiny-3l"])
def test_a_stored_input_changes_no_bit(name: str) -> None:
    model, draw = load_tiny_model(name), random.Random(5)
    prompt = PROMPT * 3
    first, second = ([random_question(draw, EOS) for _ in range(3)] for _ in range(2))
    group = InProcessGroup(model, 2, prefix_index=PrefixIndex(500))
    run_group(group, [decision(model, prompt, first, ATTENTIONS[name])])
    session = decision(model, prompt, second, ATTENTIONS[name])
    (values,) = run_group(group, [session])
    assert group.scheduler.prefix_index.hit_requests == 1
    assert values == alone(decision(model, prompt, second, ATTENTIONS[name]), name)
