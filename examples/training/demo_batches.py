"""Training batches of the demo model: next-token prediction, and diffusion in blocks.

A diffusion sample is a clean prompt, some clean answer blocks and a window of one to three
noisy blocks with nothing behind it: what a block-parallel decoder feeds the model. Columns
are shared by a batch, [B, T]: prompts padded on the left, then `ANSWER_LEN` columns of answer.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_tokenizer import EOS_TOKEN_ID, MASK_TOKEN_ID, SPECIAL_TOKENS, chat_prompt
from drills import make_drill
from lopa_lab.word_problems import Problem, training_problems

ANSWER_LEN = 64
WINDOW_ENDS = (0.1, 0.4, 0.25, 0.25)  # how often a window ends at answer column 16, 32, 48, 64
DRILL_SHARE = 0.12  # of the problems are drills
STEPS_TOGETHER = 8  # whose problems are drawn together and split by length, so a batch has little padding
GARBLED_SHARE = 0.2  # of the questions have words that are wrong, missing or too much
GARBLED_WORDS = 0.06  # of the words of such a question, but never these:
KEPT_WORDS = "0123456789.,?$ half Half twice times plus minus divided by more fewer less older younger"
CORRUPTED_SHARE = 0.2  # of the diffusion samples get a wrong digit, so that confidence falls behind one
CAUSAL_EVERY = 4  # diffusion steps between batches that keep the model calculating from left to right


@dataclass(slots=True)
class Batch:
    """Columns [B, T], and [B, 1, T, T] what each row sees. Row p - 1 predicts column p."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    """The factor of each column's loss, [B, T]."""
    attention_mask: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(
            self.inputs.to(device),
            self.targets.to(device),
            self.weights.to(device),
            self.attention_mask.to(device),
        )


def encode(tokenizer: Tokenizer, problems: list[Problem], rng: random.Random) -> tuple[Tensor, Tensor]:
    """Clean ids [B, T] (prompts padded on the left to equal length) and prompt lengths [B]; some words garbled."""
    prompts = [e.ids for e in tokenizer.encode_batch([chat_prompt(p.question) for p in problems])]
    answers = [e.ids for e in tokenizer.encode_batch([p.answer for p in problems])]
    fixed = set(tokenizer.encode(chat_prompt(KEPT_WORDS)).ids)
    words = [token for token in range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size()) if token not in fixed]
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if rng.random() < GARBLED_SHARE:
            prompts[index] = garble(prompt, fixed.union(answer), words, rng)
    longest = max(map(len, prompts))
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        if len(answer) >= ANSWER_LEN:
            raise ValueError(f"answer of {len(answer)} tokens does not fit in {ANSWER_LEN}")
        rows.append(
            [EOS_TOKEN_ID] * (longest - len(prompt))
            + prompt
            + answer
            + [EOS_TOKEN_ID] * (ANSWER_LEN - len(answer))
        )
    return torch.tensor(rows), torch.tensor([len(p) for p in prompts])


def garble(prompt: list[int], kept: set[int], words: list[int], rng: random.Random) -> list[int]:
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


def problems_of_step(seed: int, step: int, size: int) -> list[Problem]:
    """Training problems whose texts have about the same length: a part of those of `STEPS_TOGETHER` steps."""
    together, index = divmod(step, STEPS_TOGETHER)
    seed = seed * 1_000_003 + together
    drawn = sorted(drawn_together(seed, STEPS_TOGETHER * size), key=lambda p: len(p.question) + len(p.answer))
    order = random.Random(seed).sample(range(STEPS_TOGETHER), STEPS_TOGETHER)
    return drawn[size * order[index] :][:size]


@functools.lru_cache(maxsize=1)
def drawn_together(seed: int, count: int) -> tuple[Problem, ...]:
    """Training problems, drills among them."""
    return tuple(itertools.islice(training_problems(seed, (DRILL_SHARE, make_drill)), count))


def mark_results(tokenizer: Tokenizer, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which answer columns hold results, which the question does not tell, and which columns repeat one.

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


def causal_batch(ids: Tensor, lengths: Tensor, result: Tensor) -> Batch:
    """Next-token prediction of the answer; results count twice, one EOS is enough."""
    prompt = ids.shape[1] - ANSWER_LEN
    last = int((ids[:, prompt:] != EOS_TOKEN_ID).nonzero()[:, 1].max())
    ids, result = (
        rows[:, : prompt + last + 3] for rows in (ids, result)
    )  # an end or two behind the longest answer
    batch, total = ids.shape
    columns = torch.arange(total)
    not_padding = columns >= (prompt - lengths)[:, None]
    attention_mask = columns[:, None] >= columns
    attention_mask = (attention_mask & not_padding[:, None]) | torch.eye(total, dtype=torch.bool)
    weights = torch.where(columns < prompt, 0.0, 1.0).expand(batch, total).clone()
    weights[:, prompt:][(ids[:, prompt:] == EOS_TOKEN_ID) & (ids[:, prompt - 1 : -1] == EOS_TOKEN_ID)] = 0.05
    weights[result] = 2.0
    return Batch(ids, ids, weights, attention_mask[:, None])


def diffusion_batch(
    ids: Tensor,
    lengths: Tensor,
    result: Tensor,
    repeated: Tensor,
    digits: Tensor,
    full_share: float,
    rng: torch.Generator,
) -> Batch:
    """Windows of noisy blocks behind clean ones, all ending in the same column; nothing exists behind it."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng)

    batch, prompt = len(ids), ids.shape[1] - ANSWER_LEN
    blocks = int(torch.multinomial(torch.tensor(WINDOW_ENDS), 1, generator=rng)) + 1  # of 16 columns
    ids, result, repeated = (x[:, : prompt + 16 * blocks] for x in (ids, result, repeated))
    calculated = result | repeated
    columns = torch.arange(ids.shape[1]) - prompt
    size = torch.where(uniform(batch) < 0.5, 32, 16) if blocks % 2 == 0 else torch.full((batch,), 16)
    last = 16 * blocks // size
    window = 1 + (uniform(batch) * last.clamp(max=3) * 0.999).long()
    block = torch.where(columns >= 0, columns // size[:, None] + 1, 0)
    offset = block - (last - window)[:, None] - 1  # of a column's block in the window; clean before it
    masked = choose_masked(columns, offset, window, size, calculated, uniform)
    not_padding = columns >= -lengths[:, None]
    mode = uniform(batch, 1, 1)
    attention_mask = block[:, :, None] >= block[:, None]
    # Full attention: half of the time the clean prefix sees the window too, as when it is cached.
    attention_mask |= (offset >= 0)[:, :, None] & (mode < full_share)
    attention_mask |= mode < full_share / 2
    attention_mask = (attention_mask & not_padding[:, None]) | torch.eye(len(columns), dtype=torch.bool)
    # The first masked result can be calculated; those behind it depend on it, and count less.
    masked_results = (masked & result).long().cumsum(1)
    weights = masked * torch.where(calculated, 0.5, 1.0)
    weights[masked & result & (masked_results <= 2)] = 3.0
    weights[:, 1:][(ids[:, 1:] == EOS_TOKEN_ID) & (ids[:, :-1] == EOS_TOKEN_ID)] *= 0.3
    inputs, targets = corrupt_results(ids, result & ~masked & (offset >= 0), calculated & masked, digits, rng)
    return Batch(inputs.masked_fill(masked, MASK_TOKEN_ID), targets, weights, attention_mask[:, None])


def choose_masked(
    columns: Tensor,
    offset: Tensor,
    window: Tensor,
    size: Tensor,
    calculated: Tensor,
    uniform: Callable[..., Tensor],
) -> Tensor:
    """Which columns [B, T] are masked, by the block of the window (`offset` [B, T]) that they belong to."""
    batch = len(offset)
    # The ratio of masks rises from block to block; a fresh last block (all masks) is the commonest.
    ratios = uniform(batch, 3).sort(1).values
    ratios[torch.arange(batch), window - 1] += uniform(batch).round()
    ratios[uniform(batch) < 0.25] = 1.0
    ratio = ratios.clamp(max=1.0).gather(1, offset.clamp(0, 2))
    # A decoder fills first what the question tells, then results from left to right.
    order = uniform(batch, len(columns)) + uniform(batch, 1) * (2 + columns / 16) * calculated
    order += uniform(batch, 1) * columns / size[:, None]
    masked = torch.zeros_like(calculated)
    for index in range(3):
        inside = offset == index
        rank = order.masked_fill(~inside, -math.inf).argsort(1, descending=True).argsort(1)
        masked |= inside & (rank < (ratio * size[:, None]).ceil())
    return masked


def corrupt_results(
    ids: Tensor, decided: Tensor, masked_digits: Tensor, digits: Tensor, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs and targets [B, T] in which some samples hold one wrong digit among the `decided` ones.

    What depends on it has no right answer any more: the targets there are random digits. A decoder
    that compares branches by their confidence needs a model that is unsure behind a mistake.
    """
    batch, total = ids.shape
    column = (torch.rand(batch, total, generator=rng) * decided).argmax(1)
    corrupted = decided.any(1) & (torch.rand(batch, generator=rng) < CORRUPTED_SHARE)
    rows = torch.arange(batch)
    value = (ids[rows, column][:, None] == digits).int().argmax(1)
    wrong_digit = digits[(value + torch.randint(1, 10, (batch,), generator=rng)) % 10]
    inputs = ids.clone()
    inputs[rows[corrupted], column[corrupted]] = wrong_digit[corrupted]
    affected = masked_digits & corrupted[:, None] & (torch.arange(total) >= column[:, None] - 1)
    noise = digits[torch.randint(0, 10, (batch, total), generator=rng)]
    return inputs, torch.where(affected, noise, ids)


def is_causal(step: int, causal_steps: int) -> bool:
    """Whether a step is next-token prediction."""
    return step < causal_steps or step % CAUSAL_EVERY == 0


def batch_of_step(
    tokenizer: Tokenizer, seed: int, step: int, size: int, causal_steps: int, full_attention: float
) -> Batch:
    """The batch of a step, from seed and step alone: a resumed run goes on with the same data."""
    problems = problems_of_step(seed, step, size)
    seed = seed * 1_000_003 + step
    ids, lengths = encode(tokenizer, problems, random.Random(seed))
    result, repeated = mark_results(tokenizer, ids)
    if is_causal(step, causal_steps):
        return causal_batch(ids, lengths, result)
    rng = torch.Generator().manual_seed(seed)
    digits = torch.tensor([tokenizer.token_to_id(c) for c in "0123456789"])
    return diffusion_batch(ids, lengths, result, repeated, digits, full_attention, rng)
