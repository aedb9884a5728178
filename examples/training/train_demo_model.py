"""Train the demo model: a Dream-style diffusion language model that solves word problems.

    pip install -e '.[train]'
    python examples/training/train_demo_model.py --run-dir runs/demo

Training starts as next-token prediction, the cheapest way to learn to calculate, and goes on as diffusion in blocks,
with holes in answers and with decisions (see demo_batches.py). With several workers, or with --gpu, it runs under Ray
Train. Started again on the same folder, it goes on where its last checkpoint was; data depend on seed and step alone.
The model, with averaged weights, is in RUN_DIR/model after each evaluation, ready for `lopa generate --model`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import HfArgumentParser

from demo_batches import batch_of_step, kind_of
from demo_model import build_model, forward, loss_of
from demo_optimizers import AveragedModel, Optimizers, learning_rate
from demo_start import start_from
from demo_tokenizer import TOKENIZER_FILES, load_tokenizer
from evaluate_demo_model import evaluate_all
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.transformer import Transformer

Report = Callable[[dict[str, float]], None]
CURVE = "curve.jsonl"
"""The file of a run that has its losses, accuracies and evaluations, a line each; plot_curve.py draws it."""
PREFIXES = {"causal": "causal_", "diffusion": "", "infilling": "infilling_", "decision": "decision_"}
"""Prefixes of the keys of a curve, by kind of batch."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One training run. A resumed run has the same shape of model; another seed or batch size gives other data."""

    run_dir: str = "runs/demo"
    """Checkpoint, tokenizer and model; with several nodes a folder that all of them see."""
    init: str = ""
    """Folder of a model to begin with, of the same shape; it may have fewer layers and another vocabulary."""
    seed: int = 7
    hidden_size: int = 224
    num_layers: int = 7
    num_heads: int = 4
    intermediate_size: int = 608
    batch_size: int = 64
    """Problems per step, over all workers."""
    steps: int = 32000
    warmup: int = 100
    decay: int = 16000
    """Last steps, over which the learning rate falls to nothing."""
    causal_steps: int = 1500
    """First steps, of next-token prediction."""
    full_attention: float = 0.7
    """Share of the diffusion samples with full attention in the window; block-causal in the rest."""
    learning_rate: float = 2.5e-3
    eval_every: int = 2500
    eval_problems: int = 100
    """Samples of each sort that the exported model is evaluated on."""
    save_every: int = 100
    threads: int = 2
    compile: bool = True
    """Compile the forward pass: a quarter faster on CPUs, half a minute to begin with."""


def average_gradients(model: Transformer, world_size: int) -> None:
    """Average the gradients of all data-parallel workers."""
    for weight in model.parameters():
        if world_size > 1 and weight.grad is not None:
            dist.all_reduce(weight.grad)
            weight.grad /= world_size


def forget_later_steps(curve: Path, step: int) -> None:
    """Remove the lines after a checkpoint's step: a resumed run writes them again."""
    lines = curve.read_text().splitlines(keepends=True) if curve.exists() else []
    curve.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))


def export(model: Transformer, run_dir: Path) -> Path:
    """Write the model with its tokenizer as a checkpoint in bfloat16."""
    folder = run_dir / "model"
    save_model(model, folder, dtype=torch.bfloat16)
    for name in TOKENIZER_FILES:
        shutil.copy(run_dir / name, folder / name)
    return folder


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
    shape = (config.hidden_size, config.num_layers, config.num_heads, config.intermediate_size)
    model = build_model(tokenizer.get_vocab_size(), *shape, config.seed).to(device)
    optimizers = Optimizers(model)
    checkpoint, unfinished = run_dir / "checkpoint.pt", run_dir / "checkpoint.tmp"
    resumed = torch.load(checkpoint, map_location=device, weights_only=True) if checkpoint.exists() else None
    if resumed is None and config.init:
        start_from(model, tokenizer, Path(config.init))
    averaged = AveragedModel(model)
    step, seconds = 0, 0.0
    if resumed is not None:
        model.load_state_dict(resumed["model"])
        averaged.model.load_state_dict(resumed["averaged"])
        optimizers.load_state_dict(resumed["optimizers"])
        step, seconds = resumed["step"], resumed["seconds"]
        if rank == 0:
            forget_later_steps(run_dir / CURVE, step)
    torch._dynamo.config.recompile_limit = 16  # sizes of batches
    forward_fn = torch.compile(forward, dynamic=False) if config.compile else forward
    began = time.monotonic() - seconds
    size, causal_steps = config.batch_size // world_size, config.causal_steps
    history: dict[str, list[tuple[float, float]]] = {kind: [] for kind in PREFIXES}
    while step < config.steps:
        seed = config.seed + 1000 * rank
        batch = batch_of_step(tokenizer, seed, step, size, causal_steps, config.full_attention)
        loss, accuracy = loss_of(model, batch.to(device), forward_fn)
        loss.backward()
        average_gradients(model, world_size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(learning_rate(step, config.learning_rate, config.warmup, config.steps, config.decay))
        averaged.update(model, step)
        history[kind_of(step, causal_steps)].append((loss.item(), accuracy))
        step += 1
        last = step == config.steps
        if last or step % 50 == 0:
            metrics = {"step": float(step), "minutes": (time.monotonic() - began) / 60}
            for kind, prefix in PREFIXES.items():
                if values := history[kind]:
                    metrics[prefix + "loss"] = sum(loss for loss, _ in values) / len(values)
                    metrics[prefix + "right"] = sum(accuracy for _, accuracy in values) / len(values)
                    values.clear()
            if rank == 0 and (last or step % config.eval_every == 0):
                metrics |= evaluate_all(export(averaged.model, run_dir), config.eval_problems)
                torch.set_num_threads(config.threads)
            if rank == 0:
                with open(run_dir / CURVE, "a") as file:
                    print(json.dumps({key: round(value, 4) for key, value in metrics.items()}), file=file)
            report(metrics)
        if rank == 0 and (last or step % config.save_every == 0):
            state = {"model": model.state_dict(), "averaged": averaged.model.state_dict()}
            state |= {
                "optimizers": optimizers.state_dict(),
                "step": step,
                "seconds": time.monotonic() - began,
            }
            torch.save(state, unfinished)
            unfinished.replace(checkpoint)


def print_metrics(metrics: dict[str, float]) -> None:
    """Print a line of the curve."""
    print(json.dumps({key: round(value, 4) for key, value in metrics.items()}), flush=True)


def train_worker(settings: dict[str, Any]) -> None:
    """The function that Ray Train runs on each worker."""
    import ray.train
    import ray.train.torch

    def report(metrics: dict[str, float]) -> None:
        if context.get_world_rank() == 0:
            print_metrics(metrics)
        ray.train.report(metrics)

    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    train(TrainConfig(**settings), report, rank, world_size, ray.train.torch.get_device())


def main() -> None:
    """Parse the command line and run the training, with several workers under Ray Train."""
    parser = HfArgumentParser(TrainConfig, description="Train the demo model.")
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

    if workers == 1 and not gpu:
        train(TrainConfig(**arguments), print_metrics)
    else:
        train_on_ray(arguments, workers, gpu, address)


def train_on_ray(arguments: dict[str, Any], workers: int, gpu: bool, address: str) -> None:
    """Run the training under Ray Train."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    resources = {"CPU": arguments["threads"], "GPU": int(gpu)}
    local_options = {"num_cpus": 1 + workers * arguments["threads"], "object_store_memory": 150_000_000}
    # Workers import the modules next to this file, and lopa_ray, from where they are here.
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
