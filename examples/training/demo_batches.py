"""Training batches of the demo model: next-token prediction, diffusion in blocks, holes in answers, and decisions.

A diffusion sample is a clean prompt, some clean answer blocks and a window of one to four noisy blocks with nothing
after it, as a block-parallel decoder feeds the model. Columns are shared by a batch, [B, T]: prompts padded on the
left, then columns of the answer. All samples of a batch have about the same length.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_noise import WINDOW, choose_hole, choose_masked, corrupt_results, misfit_numbers
from demo_rows import ANSWER_LEN, COLUMNS_TOGETHER, encode, encode_decision, mark_results, padded
from demo_samples import decisions_of_step, problems_of_step
from demo_tokenizer import EOS_TOKEN_ID, MASK_TOKEN_ID
from lopa_lab.word_problems.decisions import Decision

BatchKind: TypeAlias = Literal["causal", "diffusion", "infilling", "decision"]
WINDOW_ENDS = (0.1, 0.4, 0.25, 0.25)  # how often a window ends at answer column 16, 32, 48, 64
KINDS: dict[int, BatchKind] = {
    0: "causal",
    8: "causal",
    4: "decision",
    12: "decision",
    6: "infilling",
}
"""The kind of a step, by its remainder modulo `KINDS_TOGETHER`; diffusion else."""
KINDS_TOGETHER = 16


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


def up_to_multiple(columns: int) -> int:
    """A number of columns, rounded up to a multiple of `COLUMNS_TOGETHER`."""
    return columns + -columns % COLUMNS_TOGETHER


def causal_batch(ids: Tensor, lengths: Tensor, result: Tensor) -> Batch:
    """Next-token prediction of the answer; results count twice, one EOS is enough."""
    prompt = ids.shape[1] - ANSWER_LEN
    last = int((ids[:, prompt:] != EOS_TOKEN_ID).nonzero()[:, 1].max())
    end = up_to_multiple(prompt + last + 3)  # an end or two after the longest answer
    ids, result = ids[:, :end], result[:, :end]
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
    """Windows of noisy blocks after clean blocks, all ending in the same column; nothing exists after it."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng)

    batch, prompt = len(ids), ids.shape[1] - ANSWER_LEN
    blocks = int(torch.multinomial(torch.tensor(WINDOW_ENDS), 1, generator=rng)) + 1  # of 16 columns
    columns = torch.arange(prompt + 16 * blocks) - prompt
    size = torch.where(uniform(batch) < 0.5, 32, 16) if blocks % 2 == 0 else torch.full((batch,), 16)
    last = 16 * blocks // size
    window = 1 + (uniform(batch) * last.clamp(max=WINDOW) * 0.999).long()
    block = torch.where(columns >= 0, columns // size[:, None] + 1, 0)
    offset = block - (last - window)[:, None] - 1  # of a column's block in the window; clean before it
    in_window = offset >= 0
    parts = misfit_numbers(ids, result, repeated, in_window, rng)
    ids, result, repeated, misfit = (x[:, : len(columns)] for x in parts)
    calculated = result | repeated
    masked = choose_masked(columns, offset, window, size, calculated, uniform) | misfit
    neighbours = (misfit.roll(1, 1) | misfit.roll(-1, 1)) & ~misfit
    masked &= ~neighbours  # they say how many digits there are
    not_padding = columns >= -lengths[:, None]
    mode = uniform(batch, 1, 1)
    attention_mask = block[:, :, None] >= block[:, None]
    # Full attention: half of the time the clean prefix sees the window too, as when it is cached.
    attention_mask |= in_window[:, :, None] & (mode < full_share)
    attention_mask |= mode < full_share / 2
    attention_mask = (attention_mask & not_padding[:, None]) | torch.eye(len(columns), dtype=torch.bool)
    # The first masked result can be calculated; the results after it depend on it, and count less.
    masked_results = (masked & result).long().cumsum(1)
    weights = masked * torch.where(calculated, 0.5, 1.0)
    weights[masked & result & (masked_results <= 2)] = 3.0
    # A decoder often fills what stands after a result first, and so decides how many digits the result has.
    behind = result.roll(1, 1) & ~result
    weights[masked & behind] = 2.0
    weights[:, 1:][(ids[:, 1:] == EOS_TOKEN_ID) & (ids[:, :-1] == EOS_TOKEN_ID)] *= 0.3
    weights[misfit] = 1.0
    inputs, targets = corrupt_results(ids, result & ~masked & in_window, calculated & masked, digits, rng)
    noise = digits[torch.randint(0, 10, targets.shape, generator=rng)]
    targets = torch.where(misfit, noise, targets)
    return Batch(inputs.masked_fill(masked, MASK_TOKEN_ID), targets, weights, attention_mask[:, None])


def infilling_batch(ids: Tensor, lengths: Tensor, uniform: Callable[..., Tensor]) -> Batch:
    """Whole answers with their end and a hole in the middle; the prompt sees the answer half of the time."""
    prompt = ids.shape[1] - ANSWER_LEN
    ends = prompt + (ids[:, prompt:] != EOS_TOKEN_ID).sum(1)
    ids = ids[:, : up_to_multiple(int(ends.max()) + 1)]
    columns = torch.arange(ids.shape[1])
    masked = choose_hole(len(columns), prompt, ends, uniform)
    seen = columns >= (prompt - lengths)[:, None]
    seen &= columns <= ends[:, None]  # nothing is after an answer's end
    attention_mask = (columns[:, None] >= prompt) | (columns < prompt) | (uniform(len(ids), 1, 1) < 0.5)
    attention_mask = (attention_mask & seen[:, None]) | torch.eye(len(columns), dtype=torch.bool)
    return Batch(ids.masked_fill(masked, MASK_TOKEN_ID), ids, masked.float(), attention_mask[:, None])


def decision_batch(tokenizer: Tokenizer, decisions: list[Decision]) -> Batch:
    """Inputs that see themselves alone, questions that see them, and slots of masks, whose labels are predicted."""
    rows, slots, given = [], [], []
    for decision in decisions:
        seen, asked, labels = encode_decision(tokenizer, decision)
        rows.append(seen + asked + labels[decision.right])
        slots.append(len(labels[decision.right]))
        given.append(len(rows[-1]) - len(seen))
    ids = padded(rows, [[] for _ in rows])
    columns = torch.arange(ids.shape[1])
    masked = columns >= ids.shape[1] - torch.tensor(slots)[:, None]
    asking = columns >= ids.shape[1] - torch.tensor(given)[:, None]
    not_padding = columns >= ids.shape[1] - torch.tensor([len(row) for row in rows])[:, None]
    attention_mask = asking[:, :, None] | ~asking[:, None]
    attention_mask = (attention_mask & not_padding[:, None]) | torch.eye(len(columns), dtype=torch.bool)
    return Batch(ids.masked_fill(masked, MASK_TOKEN_ID), ids, masked.float(), attention_mask[:, None])


def kind_of(step: int, causal_steps: int) -> BatchKind:
    """The kind of batch that a step trains on."""
    return "causal" if step < causal_steps else KINDS.get(step % KINDS_TOGETHER, "diffusion")


def batch_of_step(
    tokenizer: Tokenizer, seed: int, step: int, size: int, causal_steps: int, full_attention: float
) -> Batch:
    """The batch of a step, from seed and step alone: a resumed run goes on with the same data."""
    kind, own_seed = kind_of(step, causal_steps), seed * 1_000_003 + step
    if kind == "decision":
        return decision_batch(tokenizer, decisions_of_step(seed, step // KINDS_TOGETHER, size))
    ids, lengths = encode(tokenizer, problems_of_step(seed, step, size), random.Random(own_seed))
    rng = torch.Generator().manual_seed(own_seed)
    if kind == "infilling":
        return infilling_batch(ids, lengths, lambda *shape: torch.rand(*shape, generator=rng))
    result, repeated = mark_results(tokenizer, ids)
    if kind == "causal":
        return causal_batch(ids, lengths, result)
    digits = torch.tensor([tokenizer.token_to_id(c) for c in "0123456789"])
    return diffusion_batch(ids, lengths, result, repeated, digits, full_attention, rng)
