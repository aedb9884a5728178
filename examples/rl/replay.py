"""Replay: what stood on the canvas at each step of an answer, and a trainer's log-probabilities of what it decided.

Answers come from decoder block_diffusion: blocks are counted from the start of the prompt, and a block sees itself
and the blocks before it. So one forward has the blocks that are all prompt once, and behind them the canvases of all
steps of all answers, which do not see each other.

Shapes: P positions in blocks that are all prompt, N canvases, W positions of a canvas, T decided tokens.
"""

from __future__ import annotations

import math
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
    """Ids [N, W] before a step: the rest of the prompt and the answer, with masks, to the end of the step's block.
    Answers share a canvas as long as they have decided the same."""
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
    shared = len(answers[0].prompt_token_ids) // block_size * block_size
    prompt, given = answers[0].prompt_token_ids[:shared], answers[0].prompt_token_ids[shared:]
    canvases: dict[int, dict[tuple[int, ...], int]] = {}  # by length: canvas → index
    decided: dict[int, list[tuple[int, int, int, int, float]]] = {}
    for index, answer in enumerate(answers):
        ids, steps = [*given, *answer.replay.token_ids], [0] * len(given) + answer.replay.step_map
        logprobs = [math.nan] * len(given) + answer.raw_logprobs
        for step in sorted({*answer.step_map} - {0}):
            places = [at for at in range(len(given), len(logprobs)) if steps[at] == step]
            width = (places[0] // block_size + 1) * block_size
            before = (
                id_ if at < step else mask_token_id for id_, at in zip(ids[:width], steps, strict=False)
            )
            known = canvases.setdefault(width, {})
            row = known.setdefault(tuple(before), len(known))
            decided.setdefault(width, []).extend((row, at, ids[at], index, logprobs[at]) for at in places)
    for width, known in canvases.items():
        columns = map(torch.tensor, zip(*decided[width], strict=True))
        yield Decisions(torch.tensor(prompt, dtype=torch.long), torch.tensor(list(known)), *columns)


def log_probabilities(model: Transformer, decisions: Decisions, block_size: int) -> Tensor:
    """The log-probabilities [T], float32, of the decided tokens, at temperature 1 over the whole vocabulary."""
    prompt, (count, width) = len(decisions.prompt), decisions.canvases.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (q, q_own), (k, k_own), (v, v_own) = (
            (rows[:prompt].transpose(0, 1)[None], rows[prompt:].unflatten(0, (count, width)).transpose(1, 2))
            for rows in (q, k, v)
        )
        of_prompt = attend_blocks(q, k, v, 0)[0].transpose(0, 1)
        k, v = (torch.cat((rows.expand(count, -1, -1, -1), own), 2) for rows, own in ((k, k_own), (v, v_own)))
        return torch.cat((of_prompt, attend_blocks(q_own, k, v, prompt).transpose(1, 2).flatten(0, 1)))

    def attend_blocks(q: Tensor, k: Tensor, v: Tensor, seen: int) -> Tensor:
        """Each block of queries, which follow `seen` keys, sees the keys to its own end."""
        outputs: list[Tensor] = []
        for queries in q.split(block_size, 2):
            seen += queries.shape[2]
            outputs.append(F.scaled_dot_product_attention(queries, k[:, :, :seen], v[:, :, :seen]))
        return torch.cat(outputs, 2)

    positions = torch.arange(prompt + width)
    ids = torch.cat((decisions.prompt, decisions.canvases.flatten()))
    hidden = model(ids, torch.cat((positions[:prompt], positions[prompt:].repeat(count))), attend)
    # Position p is predicted by the row before it. Before a canvas that begins with the prompt nothing is decided.
    first = hidden[prompt - 1].expand(count, 1, -1)
    rows = torch.cat((first, hidden[prompt:].unflatten(0, (count, width))), 1)[
        decisions.canvas, decisions.place
    ]
    chosen: Tensor = model.lm_head(rows).float().log_softmax(-1)[torch.arange(len(rows)), decisions.token]
    return chosen
