"""Replay: what stood on the canvas at each step of an answer, and a trainer's log-probabilities of what it decided.

Answers are those of decoder d2f with block-causal attention: the prompt sees itself, and a block of the answer sees the
prompt, itself and the blocks before it. So one forward has a prompt once, and behind it the canvases of all steps of
all its answers, which do not see each other.

Shapes: P positions of the prompt, N canvases, W positions of a canvas, T decided tokens.
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
class Decisions:
    """Tokens that answers to one prompt have decided, on canvases of the same length."""

    prompt: Tensor
    """Ids [P]."""
    canvases: Tensor
    """Ids [N, W] before a step, with masks, to the end of the last block that it decides something in. Answers share a
    canvas as long as they have decided the same."""
    canvas: Tensor
    """Index [T] of the canvas on which each token was decided."""
    place: Tensor
    """The token's position [T] on the canvas."""
    token: Tensor
    """Its id [T]."""
    answer: Tensor
    """Index [T] of its answer."""
    recorded: Tensor
    """Its `raw_logprobs` [T], float32."""


def decisions_of(answers: Sequence[Trajectory], block_size: int, mask_token_id: int) -> Iterator[Decisions]:
    """What answers to one prompt have decided, up to their ends."""
    prompt = torch.tensor(answers[0].prompt_token_ids)
    canvases: dict[int, dict[tuple[int, ...], int]] = {}  # by length: canvas → index
    decided: dict[int, list[tuple[int, int, int, int, float]]] = {}
    for index, answer in enumerate(answers):
        ids, steps = answer.replay.token_ids, answer.replay.step_map
        for step in sorted({*answer.step_map} - {0}):
            places = [at for at, number in enumerate(answer.step_map) if number == step]
            width = min((places[-1] // block_size + 1) * block_size, len(ids))
            before = (
                id_ if at < step else mask_token_id for id_, at in zip(ids[:width], steps, strict=False)
            )
            known = canvases.setdefault(width, {})
            row = known.setdefault(tuple(before), len(known))
            decided.setdefault(width, []).extend(
                (row, at, ids[at], index, answer.raw_logprobs[at]) for at in places
            )
    for width, known in canvases.items():
        columns = map(torch.tensor, zip(*decided[width], strict=True))
        yield Decisions(prompt, torch.tensor(list(known)), *columns)


def log_probabilities(model: Transformer, decisions: Decisions, block_size: int) -> Tensor:
    """The log-probabilities [T], float32, of the decided tokens, at temperature 1 over the whole vocabulary."""
    prompt, (count, width) = len(decisions.prompt), decisions.canvases.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (q, q_own), (k, k_own), (v, v_own) = (
            (rows[:prompt].transpose(0, 1)[None], rows[prompt:].unflatten(0, (count, width)).transpose(1, 2))
            for rows in (q, k, v)
        )
        of_prompt = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        k, v = (torch.cat((rows.expand(count, -1, -1, -1), own), 2) for rows, own in ((k, k_own), (v, v_own)))
        of_blocks: list[Tensor] = []
        for queries in q_own.split(block_size, 2):
            seen = prompt + sum(block.shape[2] for block in of_blocks) + queries.shape[2]
            of_blocks.append(F.scaled_dot_product_attention(queries, k[:, :, :seen], v[:, :, :seen]))
        return torch.cat((of_prompt, torch.cat(of_blocks, 2).transpose(1, 2).flatten(0, 1)))

    positions = torch.arange(prompt + width)
    ids = torch.cat((decisions.prompt, decisions.canvases.flatten()))
    hidden = model(ids, torch.cat((positions[:prompt], positions[prompt:].repeat(count))), attend)
    # Position p is predicted by the row before it, and the answer's first position by the prompt's last row.
    first = hidden[prompt - 1].expand(count, 1, -1)
    rows = torch.cat((first, hidden[prompt:].unflatten(0, (count, width))), 1)[
        decisions.canvas, decisions.place
    ]
    chosen: Tensor = model.lm_head(rows).float().log_softmax(-1)[torch.arange(len(rows)), decisions.token]
    return chosen
