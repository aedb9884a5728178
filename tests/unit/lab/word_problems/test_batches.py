"""Training batches: problems of a step, garbled words, and the lines of a curve that a resumed run writes again."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import demo_batches
from demo_batches import ANSWER_LEN, KEPT_WORDS, batch_of_step, encode, garble, problems_of_step
from demo_tokenizer import MASK_TOKEN_ID, SPECIAL_TOKENS, chat_prompt
from lopa_ray.config.model_settings import DEMO_MODEL
from train_demo_model import forget_later_steps

TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def test_steps_share_out_the_problems_that_are_drawn_together() -> None:
    steps = [problems_of_step(3, step, 8) for step in range(2 * demo_batches.STEPS_TOGETHER)]
    assert all(len(problems) == 8 for problems in steps)
    texts = [problem.question for problems in steps for problem in problems]
    assert len(set(texts)) > 0.9 * len(texts)
    assert steps[2] == problems_of_step(3, 2, 8)
    spread = [
        max(lengths) - min(lengths) for lengths in ([len(p.question) for p in of_step] for of_step in steps)
    ]
    assert sum(spread) / len(spread) < max(map(len, texts)) - min(map(len, texts))


def test_garbled_prompts_keep_numbers_names_and_words_that_say_what_to_calculate() -> None:
    prompt = TOKENIZER.encode(
        chat_prompt("Tom has 12 pens. Mia has twice as many. How many do they have?")
    ).ids
    kept = set(TOKENIZER.encode(KEPT_WORDS + " Tom").ids).union(range(len(SPECIAL_TOKENS)))
    words = [token for token in range(TOKENIZER.get_vocab_size()) if token not in kept]
    rng, changed = random.Random(1), 0
    for _ in range(200):
        garbled = garble(prompt, kept, words, rng)
        assert [token for token in garbled if token in kept] == [token for token in prompt if token in kept]
        changed += garbled != prompt
    assert 50 < changed < 200


def test_questions_get_no_special_tokens_and_answers_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_batches, "GARBLED_SHARE", 1.0)
    monkeypatch.setattr(demo_batches, "GARBLED_WORDS", 0.5)
    problems = problems_of_step(1, 0, 32)
    ids, lengths = encode(TOKENIZER, problems, random.Random(0))
    for row, length, problem in zip(ids.tolist(), lengths.tolist(), problems, strict=True):
        prompt = row[len(row) - ANSWER_LEN - length : -ANSWER_LEN]
        usual = TOKENIZER.encode(chat_prompt(problem.question)).ids
        assert [t for t in prompt if t < len(SPECIAL_TOKENS)] == [t for t in usual if t < len(SPECIAL_TOKENS)]
        assert MASK_TOKEN_ID not in row
        assert TOKENIZER.decode(row[-ANSWER_LEN:]) == problem.answer


@pytest.mark.parametrize("causal_steps", [0, 9])
def test_a_step_has_the_same_batch_again(causal_steps: int) -> None:
    ours, theirs = (batch_of_step(TOKENIZER, 5, 3, 8, causal_steps, 0.7) for _ in range(2))
    assert torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.targets, theirs.targets)
    assert (ours.weights > 0).any()
    assert bool((ours.inputs == MASK_TOKEN_ID).any()) is (causal_steps == 0)


def test_a_resumed_run_writes_later_lines_again(tmp_path: Path) -> None:
    curve = tmp_path / "curve.jsonl"
    forget_later_steps(curve, 100)
    assert curve.read_text() == ""
    curve.write_text("".join(json.dumps({"step": step}) + "\n" for step in (50, 100, 150)))
    forget_later_steps(curve, 100)
    assert [json.loads(line)["step"] for line in curve.read_text().splitlines()] == [50, 100]
