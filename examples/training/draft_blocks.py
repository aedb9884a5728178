"""Blocks of answers as training samples of a draft adapter: the model's own K/V before a block, and masks in it.

A block begins after a token of the answer, and most of its tokens are masks. Row p of it sees the whole block and all
before it, and is to predict token p + 1, if that is masked or begins the next block.

Shape suffixes: N samples, T columns of the longest one, K blocks per sample, B positions per block.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lopa_ray.text.tokenizer import Tokenizer

MIN_TOKENS = 12
"""Shorter answers have hardly a block."""

LOOP_TOKENS, MOST_REPEATS = 6, 3
"""An answer that has the same six tokens more than three times is a loop, and no sample."""


@dataclass(frozen=True, slots=True)
class Sample:
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Samples, padded on the right, and blocks of their answers."""

    ids: Tensor
    """int64 [N, T]"""
    starts: Tensor
    """int64 [N, K]: the first position of each block."""
    positions: Tensor
    """int64 [N, K * B]"""
    masked: Tensor
    """bool [N, K * B]"""
    predicts: Tensor
    """bool [N, K * B]: whether a row predicts a token of the sample."""
    places: Tensor
    """int64 [N, K * B]: the position within the block."""

    @classmethod
    def draw(
        cls, samples: Sequence[Sample], block_size: int, revealing: float, generator: torch.Generator
    ) -> Blocks:
        """Blocks from a random place on. `revealing`: the share of the blocks in which random tokens are seen."""
        lengths = torch.tensor([len(sample.prompt) + len(sample.answer) for sample in samples])
        prompts = torch.tensor([len(sample.prompt) for sample in samples])
        size, columns = len(samples), int(lengths.max())
        ids = torch.zeros(size, columns, dtype=torch.int64)
        for row, sample in enumerate(samples):
            ids[row, : lengths[row]] = torch.tensor(sample.prompt + sample.answer)
        count = int((lengths - prompts).max()) // block_size + 1
        shift = torch.randint(block_size, (size, 1), generator=generator)
        starts = prompts[:, None] + shift + block_size * torch.arange(count)
        positions = (starts[..., None] + torch.arange(block_size)).flatten(1)
        shown = torch.rand(size, count, 1, generator=generator) < revealing
        share = torch.rand(size, count, 1, generator=generator)
        masked = ~(shown & (torch.rand(size, count, block_size, generator=generator) < share))
        decides_mask = torch.cat((masked[..., 1:], torch.ones(size, count, 1, dtype=torch.bool)), -1).flatten(
            1
        )
        predicts = decides_mask & (positions + 1 < lengths[:, None])
        places = torch.arange(block_size).repeat(size, count)
        return cls(ids, starts, positions, masked.flatten(1), predicts, places)

    @property
    def inputs(self) -> Tensor:
        """int64 [N, K * B]: the tokens of the blocks, masks not yet in their place."""
        return self.ids.gather(1, self.positions.clamp(max=self.ids.shape[1] - 1))

    @property
    def targets(self) -> Tensor:
        """int64 [N, K * B]: the token after each row."""
        return self.ids.gather(1, (self.positions + 1).clamp(max=self.ids.shape[1] - 1))

    def mask(self) -> Tensor:
        """bool [N, K * B, T + K * B]: a row sees the sample before its block, and its block."""
        block_size = self.positions.shape[1] // self.starts.shape[1]
        block = torch.arange(self.positions.shape[1]) // block_size
        before = torch.arange(self.ids.shape[1]) < self.starts[:, block][..., None]
        own = (block[:, None] == block).expand(len(before), -1, -1)
        return torch.cat((before, own), -1)


def is_loop(ids: Sequence[int]) -> bool:
    """Whether an answer says the same again and again."""
    runs = [*zip(*(ids[at:] for at in range(LOOP_TOKENS)), strict=False)]
    return any(runs.count(run) > MOST_REPEATS for run in set(runs))


def read_samples(path: Path, tokenizer: Tokenizer) -> list[Sample]:
    """The lines of english_answers.py that are of use."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    usable = (
        line for line in lines if len(line["token_ids"]) >= MIN_TOKENS and not is_loop(line["token_ids"])
    )
    return [
        Sample(
            tokenizer.apply_chat_template([{"role": "user", "content": line["prompt"]}]), line["token_ids"]
        )
        for line in usable
    ]


def batches(samples: Sequence[Sample], tokens: int, rng: random.Random) -> list[list[Sample]]:
    """All samples once, in batches of about so many answer tokens and of similar lengths."""
    keyed = [(len(sample.prompt) + len(sample.answer) + 30 * rng.random(), sample) for sample in samples]
    found: list[list[Sample]] = [[]]
    for _, sample in sorted(keyed, key=lambda pair: pair[0]):
        if sum(len(other.answer) for other in found[-1]) >= tokens:
            found.append([])
        found[-1].append(sample)
    rng.shuffle(found)
    return found
