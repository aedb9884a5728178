"""Replay: what stood on the canvas at each step of an answer, and a trainer's own log-probabilities of what it decided.

Answers are those of decoder d2f with block-causal attention: the prompt sees itself, and a block of the answer sees the
prompt, itself and the blocks before it. So one forward has a prompt once, and behind it the canvases of all steps of
all its answers, which do not see each other.

Shape suffixes: P positions of the prompt, N steps, W positions of a canvas, T decided tokens, H heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray import Trajectory
from lopa_ray.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of answers to one prompt, whose canvases have the same length."""

    prompt: Tensor
    """Ids [P]."""
    canvases: Tensor
    """Ids [N, W] before the step, with masks, to the end of the last block that it decided something in."""
    answer: Tensor
    """Index [N] of the answer that the step is one of."""
    step: Tensor
    """Index [T] of the step that decided each token; a step has one token or more."""
    place: Tensor
    """The token's position [T] on the canvas."""
    token: Tensor
    """Its id [T]."""
    recorded: Tensor
    """Its `raw_logprobs` [T], float32."""


def steps_of(answers: Sequence[Trajectory], block_size: int, mask_token_id: int) -> Iterator[Steps]:
    """The steps of answers to one prompt. Tokens behind an answer's end are not among what a step has decided."""
    prompt = torch.tensor(answers[0].prompt_token_ids)
    by_length: dict[int, list[tuple[int, int]]] = {}
    for index, answer in enumerate(answers):
        for step in sorted({*answer.step_map} - {0}):
            last = max(at for at, decided in enumerate(answer.step_map) if decided == step)
            width = min((last // block_size + 1) * block_size, len(answer.replay.token_ids))
            by_length.setdefault(width, []).append((index, step))
    for width, steps in by_length.items():
        canvases, decided = [], []
        for row, (index, step) in enumerate(steps):
            answer = answers[index]
            pairs = zip(answer.replay.token_ids[:width], answer.replay.step_map, strict=False)
            canvases.append([token if before < step else mask_token_id for token, before in pairs])
            decided += [
                (row, at, answer.token_ids[at], answer.raw_logprobs[at])
                for at, number in enumerate(answer.step_map)
                if number == step
            ]
        rows, places, tokens, recorded = map(torch.tensor, zip(*decided, strict=True))
        of_answers = torch.tensor([index for index, _ in steps])
        yield Steps(prompt, torch.tensor(canvases), of_answers, rows, places, tokens, recorded)


def log_probabilities(model: Transformer, steps: Steps, block_size: int) -> Tensor:
    """The log-probabilities [T], float32, of the decided tokens, at temperature 1 over the whole vocabulary."""
    prompt, (count, width) = len(steps.prompt), steps.canvases.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (q, q_own), (k, k_own), (v, v_own) = (
            (rows[:prompt].transpose(0, 1)[None], rows[prompt:].unflatten(0, (count, width)).transpose(1, 2))
            for rows in (q, k, v)
        )
        of_prompt = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        k, v = (torch.cat((rows.expand(count, -1, -1, -1), own), 2) for rows, own in ((k, k_own), (v, v_own)))
        of_blocks = []
        for queries in q_own.split(block_size, 2):
            seen = prompt + sum(block.shape[2] for block in of_blocks) + queries.shape[2]
            of_blocks.append(F.scaled_dot_product_attention(queries, k[:, :, :seen], v[:, :, :seen]))
        return torch.cat((of_prompt, torch.cat(of_blocks, 2).transpose(1, 2).flatten(0, 1)))

    positions = torch.arange(prompt + width)
    ids = torch.cat((steps.prompt, steps.canvases.flatten()))
    hidden = model(ids, torch.cat((positions[:prompt], positions[prompt:].repeat(count))), attend)
    # Position p is predicted by the row before it, and the answer's first position by the prompt's last row.
    first = hidden[prompt - 1].expand(count, 1, -1)
    rows = torch.cat((first, hidden[prompt:].unflatten(0, (count, width))), 1)[steps.step, steps.place]
    chosen: Tensor = model.lm_head(rows).float().log_softmax(-1)[torch.arange(len(rows)), steps.token]
    return chosen
