"""Training batches: problems of a step, garbled words, and the lines of a curve that a resumed run writes again."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers import Tokenizer

import demo_rows
from demo_batches import KINDS, batch_of_step, kind_of
from demo_rows import ANSWER_LEN, COLUMNS_TOGETHER, encode
from demo_samples import STEPS_TOGETHER, problems_of_step
from demo_tokenizer import EOS_TOKEN_ID, MASK_TOKEN_ID, SPECIAL_TOKENS, chat_prompt
from lopa_ray.config.model_settings import DEMO_MODEL

TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def test_steps_share_out_the_problems_that_are_drawn_together() -> None:
    steps = [problems_of_step(3, step, 8) for step in range(2 * STEPS_TOGETHER)]
    assert all(len(problems) == 8 for problems in steps)
    texts = [problem.question for problems in steps for problem in problems]
    assert len(set(texts)) > 0.9 * len(texts)
    assert steps[2] == problems_of_step(3, 2, 8)
    spread = [max(lengths) - min(lengths) for lengths in ([len(p.question) for p in each] for each in steps)]
    assert sum(spread) / len(spread) < max(map(len, texts)) - min(map(len, texts))


def test_questions_get_no_special_tokens_and_answers_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_rows, "GARBLED_SHARE", 1.0)
    monkeypatch.setattr(demo_rows, "GARBLED_WORDS", 0.5)
    problems = problems_of_step(1, 0, 32)
    ids, lengths = encode(TOKENIZER, problems, random.Random(0))
    for row, length, problem in zip(ids.tolist(), lengths.tolist(), problems, strict=True):
        prompt = row[len(row) - ANSWER_LEN - length : -ANSWER_LEN]
        usual = TOKENIZER.encode(chat_prompt(problem.question)).ids
        assert [t for t in prompt if t < len(SPECIAL_TOKENS)] == [t for t in usual if t < len(SPECIAL_TOKENS)]
        assert MASK_TOKEN_ID not in row
        assert TOKENIZER.decode(row[-ANSWER_LEN:]) == problem.answer


@pytest.mark.parametrize(("step", "causal_steps"), [(3, 0), (3, 9), *((step, 0) for step in KINDS)])
def test_a_step_has_the_same_batch_again(step: int, causal_steps: int) -> None:
    ours, theirs = (batch_of_step(TOKENIZER, 5, step, 8, causal_steps, 0.7) for _ in range(2))
    assert torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.targets, theirs.targets)
    assert torch.equal(ours.attention_mask, theirs.attention_mask)
    assert ours.inputs.shape[1] % COLUMNS_TOGETHER == 0
    assert (ours.weights > 0).any(1).all()
    masked = ours.inputs == MASK_TOKEN_ID
    assert bool(masked.any()) is (kind_of(step, causal_steps) != "causal")
    assert not (masked & (ours.targets == MASK_TOKEN_ID)).any()
    assert ours.attention_mask.diagonal(dim1=-2, dim2=-1).all()


def test_a_hole_is_in_the_answer_and_what_is_around_it_is_seen() -> None:
    step = next(step for step, kind in KINDS.items() if kind == "infilling")
    batch = batch_of_step(TOKENIZER, 5, step, 16, 0, 0.7)
    masked = batch.inputs == MASK_TOKEN_ID
    assert masked.any(1).all() and torch.equal(masked, batch.weights > 0)
    for row, hole, mask in zip(batch.targets.tolist(), masked, batch.attention_mask[:, 0], strict=True):
        end = max(column for column, token in enumerate(row) if token != EOS_TOKEN_ID) + 1
        columns = hole.nonzero()[:, 0].tolist()
        assert columns[-1] - columns[0] < 16 and columns[-1] < end
        assert mask[columns[0], end - 1] and mask[columns[0], columns[-1]]


def test_the_input_of_a_decision_sees_itself_alone() -> None:
    step = next(step for step, kind in KINDS.items() if kind == "decision")
    batch = batch_of_step(TOKENIZER, 5, step, 16, 0, 0.7)
    slot = batch.inputs == MASK_TOKEN_ID
    assert slot[:, -1].all() and torch.equal(slot, batch.weights > 0)
    asked = TOKENIZER.token_to_id("<|im_start|>")
    for row, mask in zip(batch.inputs.tolist(), batch.attention_mask[:, 0], strict=True):
        given, question, _ = (column for column, token in enumerate(row) if token == asked)
        assert not mask[given:question, question:].any() and mask[given:question, given:question].all()
        assert mask[question:, given:].all()
        assert not mask[given:, :given].any()
