"""Rows of token ids of the demo model's samples: prompts padded on the left, then columns of the answer."""

from __future__ import annotations

import functools
import itertools
import random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_tokenizer import EOS_TOKEN_ID, SPECIAL_TOKENS, chat_prompt, user_message
from lopa_lab.word_problems import Problem
from lopa_lab.word_problems.decisions import Decision

ANSWER_LEN = 64
COLUMNS_TOGETHER = 16
"""Batches have multiples of so many columns: each size is compiled once, and its loops need no rest."""
GARBLED_SHARE = 0.2  # of the questions have words that are wrong, missing or too much
GARBLED_WORDS = 0.06  # of the words of such a question, but never these:
KEPT_WORDS = (
    "0123456789.,?$ half Half twice times double doubles doubled plus minus divided by more fewer less older younger "
    "each one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety - + * / x"
)


def encode(tokenizer: Tokenizer, problems: list[Problem], rng: random.Random) -> tuple[Tensor, Tensor]:
    """Clean ids [B, T] (prompts padded on the left to equal length) and prompt lengths [B]; some words garbled.

    A problem whose answer is too long under this tokenizer gives its row to another problem.
    """
    answers = [e.ids for e in tokenizer.encode_batch([p.answer for p in problems])]
    fitting = [index for index, answer in enumerate(answers) if len(answer) < ANSWER_LEN]
    chosen = [index if index in fitting else rng.choice(fitting) for index in range(len(problems))]
    problems, answers = [problems[index] for index in chosen], [answers[index] for index in chosen]
    prompts = [e.ids for e in tokenizer.encode_batch([chat_prompt(p.question) for p in problems])]
    fixed, words = kept_tokens(tokenizer)
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if rng.random() < GARBLED_SHARE:
            prompts[index] = garble(prompt, fixed.union(answer), words, rng)
    ends = [answer + [EOS_TOKEN_ID] * (ANSWER_LEN - len(answer)) for answer in answers]
    return padded(prompts, ends), torch.tensor([len(p) for p in prompts])


@functools.lru_cache(maxsize=1)
def kept_tokens(tokenizer: Tokenizer) -> tuple[frozenset[int], list[int]]:
    """The tokens that are never garbled, and the tokens that may stand in place of others."""
    fixed = frozenset(tokenizer.encode(chat_prompt(KEPT_WORDS)).ids)
    return fixed, [t for t in range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size()) if t not in fixed]


def padded(prompts: list[list[int]], ends: list[list[int]]) -> Tensor:
    """Rows [B, T] of prompts, padded on the left, and ends of equal length; T is a multiple of `COLUMNS_TOGETHER`."""
    longest = max(len(prompt) for prompt in prompts)
    longest += -(longest + len(ends[0])) % COLUMNS_TOGETHER
    rows = zip(prompts, ends, strict=True)
    return torch.tensor([[EOS_TOKEN_ID] * (longest - len(prompt)) + prompt + end for prompt, end in rows])


def garble(
    prompt: list[int], kept: set[int] | frozenset[int], words: list[int], rng: random.Random
) -> list[int]:
    """A prompt in which some tokens are replaced, missing or preceded by another of `words`, but none of `kept`.

    A reader's own question has words that no training problem has; the model must not stumble over one.
    """
    garbled = []
    for token in prompt:
        chance = rng.random() / GARBLED_WORDS
        if token in kept or chance >= 1:
            garbled.append(token)
        elif chance >= 0.25:  # else the token is missing
            garbled += [rng.choice(words)] if chance < 0.7 else [rng.choice(words), token]
    return garbled


def encode_decision(tokenizer: Tokenizer, decision: Decision) -> tuple[list[int], list[int], list[list[int]]]:
    """The ids of the input, of the question after it up to its slot, and of each label."""
    parts = (user_message(decision.input), chat_prompt(decision.question.message), *decision.question.labels)
    given, asked, *labels = (encoding.ids for encoding in tokenizer.encode_batch(parts))
    return given, asked, labels


def mark_results(tokenizer: Tokenizer, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The answer columns with results, which the question does not tell, and the columns that repeat a result.

    Both are digits: `12` is a result in `3*4=12` and repeated in `12-5=7` and `#### 12`.
    """
    digits = {tokenizer.token_to_id(c) for c in "0123456789"}
    equals = tokenizer.token_to_id("=")
    result, repeated = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    prompt = ids.shape[1] - ANSWER_LEN
    for index, row in enumerate(ids[:, prompt:].tolist()):
        known: set[tuple[int, ...]] = set()
        for is_number, group in itertools.groupby(enumerate(row), lambda pair: pair[1] in digits):
            columns, number = zip(*group, strict=True)
            if is_number and columns[0] > 0 and row[columns[0] - 1] == equals:
                known.add(number)
                result[index, prompt + columns[0] : prompt + columns[-1] + 1] = True
            elif is_number and number in known:
                repeated[index, prompt + columns[0] : prompt + columns[-1] + 1] = True
    return result, repeated
