"""Train the demo model: a Dream-style diffusion language model that solves word problems.

    pip install -e '.[train]'
    python examples/training/train_demo_model.py --run-dir runs/demo

Training starts as next-token prediction, the cheapest way to learn to calculate, and goes on
as diffusion in blocks (see demo_batches.py). It runs under Ray Train on CPUs or, with --gpu,
on GPUs. Started again on the same folder, it goes on where its last checkpoint was; data
depend on seed and step alone. The model is in RUN_DIR/model, ready for `lopa generate --model`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from demo_batches import ANSWER_LEN, Batch, batch_of_step, is_causal
from demo_start import start_from
from demo_tokenizer import EOS_TOKEN_ID, MASK_TOKEN_ID, TOKENIZER_FILES, load_tokenizer
from lopa_lab.word_problems import Problem, held_out_problems, is_correct
from lopa_ray import D2FSettings, LocalEngine
from lopa_ray.model.checkpoint import save_model
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.transformer import Transformer

Report = Callable[[dict[str, float]], None]
CURVE = "curve.jsonl"
"""The file of a run that has its losses, accuracies and evaluations, a line each; plot_curve.py draws it."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One training run. A resumed run may differ in everything but the model's shape."""

    run_dir: str
    """Checkpoint, tokenizer and model; with several nodes a folder that all of them see."""
    init: str = ""
    """Folder of a model to begin with, of the same shape but for its vocabulary; none: random weights."""
    seed: int = 7
    hidden_size: int = 224
    num_layers: int = 5
    num_heads: int = 4
    intermediate_size: int = 608
    batch_size: int = 64
    """Problems per step, over all workers."""
    steps: int = 18400
    warmup: int = 60
    decay: int = 8600
    """Last steps, over which the learning rate falls to nothing."""
    causal_steps: int = 1500
    """First steps, of next-token prediction."""
    full_attention: float = 0.7
    """Share of the diffusion samples with full attention in the window; block-causal in the rest."""
    learning_rate: float = 2.5e-3
    eval_every: int = 2500
    eval_problems: int = 100
    """Held-out problems, and as many in held-out words, that the exported model is evaluated on."""
    save_every: int = 100
    threads: int = 2
    compile: bool = True
    """Compile the forward pass: a quarter faster on CPUs, half a minute to begin with."""


def build_model(config: TrainConfig, vocab_size: int) -> Transformer:
    """A fresh model."""
    shape = NativeConfig(
        family="dream",
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_heads,
        head_dim=config.hidden_size // config.num_heads,
        intermediate_size=config.intermediate_size,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        qkv_bias=True,
        tie_word_embeddings=False,
        shifted=True,
        mask_token_id=MASK_TOKEN_ID,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=EOS_TOKEN_ID,
        bos_token_id=EOS_TOKEN_ID,
        max_position_embeddings=512,
    )
    torch.manual_seed(config.seed)
    model = Transformer(shape)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(weight)
        elif weight.dim() == 2:
            inner = name.startswith("layers.")
            torch.nn.init.normal_(weight, std=0.7 / math.sqrt(weight.shape[1]) if inner else 0.02)
    return model


def forward(model: Transformer, ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Hidden states [B, T, D] of ids [B, T] under a mask [B, 1, T, T] of what each row sees."""
    shape = ids.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Written out: on CPUs the backward pass of the fused kernel takes three times as long.
        q, k, v = (rows.unflatten(0, shape).transpose(1, 2).to(torch.bfloat16) for rows in (q, k, v))
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~attention_mask, -math.inf).softmax(-1).to(torch.bfloat16)
        return (weights @ v).transpose(1, 2).flatten(0, 1)

    positions = torch.arange(shape[1], device=ids.device).repeat(shape[0])
    with torch.autocast(ids.device.type, torch.bfloat16):
        return model(ids.flatten(), positions, attend).unflatten(0, shape)


def loss_of(
    model: Transformer, batch: Batch, forward_fn: Callable[..., Tensor] = forward
) -> tuple[Tensor, float]:
    """Weighted cross-entropy of the predicted columns, and the accuracy on the heavier ones."""
    hidden = forward_fn(model, batch.inputs, batch.attention_mask)
    weights = batch.weights[:, 1:]
    selected = weights > 0
    with torch.autocast(hidden.device.type, torch.bfloat16):
        logits = model.lm_head(hidden[:, :-1][selected]).float()
    targets, weights = batch.targets[:, 1:][selected], weights[selected]
    losses = F.cross_entropy(logits, targets, reduction="none")
    accuracy = (logits.argmax(-1) == targets)[weights >= 1].float().mean().item()
    return (losses * weights).sum() / weights.sum(), accuracy


class Optimizers:
    """Muon for the matrices of the layers, AdamW for everything else, under one schedule."""

    def __init__(self, model: Transformer, config: TrainConfig) -> None:
        self.config = config
        matrices, others = [], []
        for name, weight in model.named_parameters():
            (matrices if weight.dim() == 2 and name.startswith("layers.") else others).append(weight)
        rate = config.learning_rate
        self.muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
        self.adam = torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, step: int) -> None:
        """Update with the learning rate of this step: warm up, stay, fall."""
        config = self.config
        rate = config.learning_rate * min(
            1.0, (step + 1) / config.warmup, (config.steps - step) / config.decay
        )
        for optimizer in (self.muon, self.adam):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """State of both."""
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of both."""
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def average_gradients(model: Transformer, world_size: int) -> None:
    """Average the gradients of all data-parallel workers."""
    for weight in model.parameters():
        if world_size > 1 and weight.grad is not None:
            dist.all_reduce(weight.grad)
            weight.grad /= world_size


def forget_later_steps(curve: Path, step: int) -> None:
    """Remove the lines behind a checkpoint's step: a resumed run writes them again."""
    lines = curve.read_text().splitlines(keepends=True) if curve.exists() else []
    curve.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))


def export(model: Transformer, run_dir: Path) -> Path:
    """Write the model with its tokenizer as a checkpoint in bfloat16."""
    folder = run_dir / "model"
    save_model(model, folder, dtype=torch.bfloat16)
    for name in TOKENIZER_FILES:
        shutil.copy(run_dir / name, folder / name)
    return folder


def evaluate(folder: Path, problems: list[Problem], **settings: Any) -> tuple[float, float]:
    """Share of problems that a model solves with `d2f`, and its mean TPF."""
    decode_settings = D2FSettings(max_new_tokens=ANSWER_LEN, **settings)
    with LocalEngine.from_pretrained(folder, max_num_seqs=16, max_model_len=256) as engine:
        results = engine.generate([problem.question for problem in problems], decode_settings)
    solved = sum(is_correct(p, r.text or "") for p, r in zip(problems, results, strict=True))
    return solved / len(problems), sum(r.tokens for r in results) / sum(r.steps for r in results)


def train(
    config: TrainConfig,
    report: Report,
    rank: int = 0,
    world_size: int = 1,
    device: str | torch.device = "cpu",
) -> None:
    """Train, or go on training, as one of `world_size` workers; rank 0 saves and reports."""
    torch.set_num_threads(config.threads)
    device, run_dir = torch.device(device), Path(config.run_dir)
    tokenizer = load_tokenizer(run_dir)
    model = build_model(config, tokenizer.get_vocab_size()).to(device)
    optimizers = Optimizers(model, config)
    checkpoint, unfinished = run_dir / "checkpoint.pt", run_dir / "checkpoint.tmp"
    step, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizers.load_state_dict(state["optimizers"])
        step, seconds = state["step"], state["seconds"]
        if rank == 0:
            forget_later_steps(run_dir / CURVE, step)
    elif config.init:
        start_from(model, tokenizer, Path(config.init))
    forward_fn = torch.compile(forward) if config.compile else forward
    began = time.monotonic() - seconds
    size, causal_steps = config.batch_size // world_size, config.causal_steps
    history: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    while step < config.steps:
        seed = config.seed + 1000 * rank
        batch = batch_of_step(tokenizer, seed, step, size, causal_steps, config.full_attention)
        loss, accuracy = loss_of(model, batch.to(device), forward_fn)
        loss.backward()
        average_gradients(model, world_size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(step)
        history[is_causal(step, causal_steps)].append((loss.item(), accuracy))
        step += 1
        last = step == config.steps
        if rank == 0 and (last or step % config.save_every == 0):
            state = {"model": model.state_dict(), "optimizers": optimizers.state_dict()}
            state |= {"step": step, "seconds": time.monotonic() - began}
            torch.save(state, unfinished)
            unfinished.replace(checkpoint)
        if last or step % 25 == 0:
            metrics = {"step": float(step), "minutes": (time.monotonic() - began) / 60}
            for causal, prefix in ((True, "causal_"), (False, "")):
                if values := history[causal]:
                    metrics[prefix + "loss"] = sum(loss for loss, _ in values) / len(values)
                    metrics[prefix + "right"] = sum(accuracy for _, accuracy in values) / len(values)
                    values.clear()
            if rank == 0 and (last or step % config.eval_every == 0):
                folder = export(model, run_dir)
                for words, suffix in ((False, ""), (True, "_in_held_out_words")):
                    problems = held_out_problems(1, config.eval_problems, words)
                    metrics["solved" + suffix], metrics["tpf" + suffix] = evaluate(folder, problems)
            if rank == 0:
                with open(run_dir / CURVE, "a") as file:
                    print(json.dumps({key: round(value, 4) for key, value in metrics.items()}), file=file)
            report(metrics)


def train_worker(settings: dict[str, Any]) -> None:
    """What Ray Train runs on each worker."""
    import ray.train
    import ray.train.torch

    def report(metrics: dict[str, float]) -> None:
        if context.get_world_rank() == 0:
            print(json.dumps({key: round(value, 4) for key, value in metrics.items()}), flush=True)
        ray.train.report(metrics)

    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    train(TrainConfig(**settings), report, rank, world_size, ray.train.torch.get_device())


def main() -> None:
    """Parse the command line and run the training under Ray Train."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    for name, default in asdict(TrainConfig("runs/demo")).items():
        action = argparse.BooleanOptionalAction if isinstance(default, bool) else "store"
        options = {} if isinstance(default, bool) else {"type": type(default)}
        parser.add_argument("--" + name.replace("_", "-"), action=action, default=default, **options)
    parser.add_argument("--workers", type=int, default=1, help="data-parallel workers")
    parser.add_argument("--gpu", action="store_true", help="one GPU per worker")
    parser.add_argument("--address", default="local", help="a Ray cluster, or 'local' to start a small one")
    arguments = vars(parser.parse_args())
    workers, gpu, address = (arguments.pop(name) for name in ("workers", "gpu", "address"))
    for name in ("run_dir", "init"):  # workers run in another folder
        arguments[name] = arguments[name] and str(Path(arguments[name]).resolve())
    missing = [
        name for name in ("config.json", TOKENIZER_FILES[0]) if not Path(arguments["init"], name).exists()
    ]
    if arguments["init"] and missing:
        parser.error(f"--init: {arguments['init']} has no {' and no '.join(missing)}; name a model's folder")

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    resources = {"CPU": arguments["threads"], "GPU": int(gpu)}
    local_options = {"num_cpus": 1 + workers * arguments["threads"], "object_store_memory": 150_000_000}
    # Workers import the modules beside this file, and lopa_ray, from where they are here.
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    ray.init(
        address=address,
        include_dashboard=False if address == "local" else None,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
        **(local_options if address == "local" else {}),
    )
    load_tokenizer(Path(arguments["run_dir"]))  # once, before the workers race for it
    TorchTrainer(
        train_worker,
        train_loop_config=arguments,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker=resources),
        run_config=RunConfig(
            name="demo-model",
            storage_path=arguments["run_dir"] + "/ray",
            failure_config=FailureConfig(max_failures=3),
        ),
    ).fit()


if __name__ == "__main__":
    main()
