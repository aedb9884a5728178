"""Decisions about random tokens, run on groups in this process."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.decision_session import DecisionSession
from lopa_ray.decoding.question_tokens import QuestionTokens
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.protocol.events import RequestStep
from support.in_process_group import InProcessGroup

Logprobs = tuple[tuple[float, ...], ...]

ATTENTIONS = {
    "dream-tiny-2l": PromptAttention(),
    "llada-tiny-3l": PromptAttention("one_block"),
    "sdar-tiny-3l": PromptAttention("blocks", 4),
    "nemotron-tiny-3l": PromptAttention("causal"),
}
"""Model → what its prompts see here. Logits of the first one are shifted."""


def random_question(draw: random.Random, end_token_id: int) -> QuestionTokens:
    """Two to five values of one to three tokens behind one to nine."""
    values: dict[tuple[int, ...], None] = {}
    while len(values) < draw.randint(2, 5):
        values[tuple(draw.choices(range(8), k=draw.randint(1, 3)))] = None
    asked = tuple(draw.choices(range(100), k=draw.randint(1, 9)))
    return QuestionTokens.of(asked, [*values], end_token_id)


def decision(
    model: MaskPredictor,
    prompt: Sequence[int],
    questions: Sequence[QuestionTokens],
    attention: PromptAttention,
    **options: object,
) -> DecisionSession:
    """A session for a model."""
    vocabulary = BranchRunner(model, max_num_seqs=1, max_model_len=32).vocabulary
    return DecisionSession(prompt, questions, vocabulary, attention=attention, **options)


def run_group(group: InProcessGroup, sessions: Sequence[DecodeSession]) -> list[Logprobs]:
    """What each session's candidates get, of all its steps in order; all of them run together."""
    keys = [group.scheduler.submit(pickle.loads(pickle.dumps(session))) for session in sessions]
    reported: dict[int, list[tuple[float, ...]]] = {key: [] for key in keys}
    while group.scheduler.busy:
        for event in group.step():
            assert isinstance(event, RequestStep), event
            reported[event.request_key] += event.outcome.candidate_logprobs
    return [tuple(reported[key]) for key in keys]


def by_question(session: DecisionSession, logprobs: Logprobs) -> list[list[float]]:
    """The log-likelihoods of each question's values."""
    at, values = 0, []
    for question in session.questions:
        count = len(question.candidates_by_prefix)
        values.append(question.log_likelihoods(logprobs[at : at + count]))
        at += count
    return values
