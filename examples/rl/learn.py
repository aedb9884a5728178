"""Reinforcement learning on one Ray: a decode group answers word problems, and a trainer learns from their checker.

    python examples/rl/learn.py --run-dir runs/rl

For each update the group answers problems several times (rollouts.py), a trainer in an actor of its own replays every
answer and updates its weights (trainer.py) by a published objective (tracerl.py), and the group gets these weights.
The log is RUN_DIR/log.jsonl. At the end the model is in RUN_DIR/model, and its evaluations are in RUN_DIR/record.json.
A run that was ended goes on after its last update when it is started again on the same folder. With one thread
(--workers 1) it then has the numbers of a run without a break; with several, sums are rounded differently each time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray
from transformers import HfArgumentParser

from actors import RayEngine
from lopa_lab.records.record import now
from lopa_ray import Config, LocalEngine
from lopa_ray.execution.model_files import checkpoint_folder
from rollouts import evaluate, roll_out
from run_record import write_record
from trainer import Trainer

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run. A run that goes on has the same settings."""

    run_dir: str = "runs/rl"
    model: str = "demo"
    updates: int = 40
    problems: int = field(default=48, metadata={"help": "Problems per update"})
    answers: int = field(default=8, metadata={"help": "Answers to each problem"})
    minibatches: int = field(default=2, metadata={"help": "Steps of the optimizer per update"})
    learning_rate: float = field(
        default=1e-4, metadata={"help": "At the beginning; it falls to nothing over the run"}
    )
    denoising_steps: int = field(
        default=4,
        metadata={
            "help": "Steps in which the decoder fills a block of 16 positions, whatever the model is sure of"
        },
    )
    seed: int = field(default=7, metadata={"help": "Of training problems"})
    eval_every: int = field(
        default=10,
        metadata={
            "help": "Updates from one evaluation to the next; the first is before any update, and the last after all"
        },
    )
    eval_problems: int = 300
    eval_seed: int = field(default=2, metadata={"help": "Of the problems in held-out words"})
    workers: int = field(
        default=2,
        metadata={
            "help": "Workers, with a thread each, and threads of the trainer, which computes while workers wait"
        },
    )

    def engine_config(self) -> Config:
        """The group, and a decoder whose steps can be replayed."""
        model = {"dtype": "float32", "max_num_seqs": 32, "max_model_len": 512, "prefix_cache": "exact"}
        decode = {
            "decoder": "block_diffusion",
            "block_size": BLOCK_SIZE,
            "denoising_steps": self.denoising_steps,
            "remasking": "low_confidence_static",
            "max_new_tokens": 64,
        }
        return Config.parse(
            {
                "model": {"path": self.model, **model},
                "group": {"num_workers": self.workers},
                "decode": decode,
            }
        )


class TrainerActor:
    """Calls of a `Trainer` in an actor."""

    def __init__(self, *arguments: Any) -> None:
        # It needs no CPU of its own: the workers wait while it computes. Its threads must not spin while they wait for
        # each other: where other programs run, a spinning thread takes the time of the one that it waits for.
        environment = {"env_vars": {"OMP_WAIT_POLICY": "PASSIVE"}}
        self._actor = ray.remote(num_cpus=0, runtime_env=environment)(Trainer).remote(*arguments)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: ray.get(getattr(self._actor, name).remote(*arguments))


def learn(
    engine: LocalEngine | RayEngine, trainer: Trainer | TrainerActor, config: RunConfig
) -> list[dict[str, float]]:
    """Go on with the run until it has `config.updates` updates, and return the lines of its log, one per update. The
    first is of update 0, an evaluation alone. Raises ReplayError, and what engines raise."""
    if (done := len(trainer.log()) - 1) > 0:
        engine.update_weights(trainer.weights(), version=done)
    for update in range(done + 1, config.updates + 1):
        began = time.monotonic()
        line: dict[str, float] = {"update": update}
        if update:
            groups = roll_out(engine, config.seed, update, config.problems, config.answers)
            line |= trainer.update(groups)
            engine.update_weights(trainer.weights(), version=update)
        if update % config.eval_every == 0 or update == config.updates:
            line |= evaluate(engine, config.eval_seed, config.eval_problems)
        line["minutes"] = (time.monotonic() - began) / 60
        trainer.save(line)
        print(json.dumps(line), flush=True)
    return trainer.log()


def main() -> None:
    """Parse the command line, start group and trainer, and learn."""
    parser = HfArgumentParser(RunConfig, description="Reinforcement learning on word problems.")
    config = RunConfig(**vars(parser.parse_args()))
    for name in ("problems", "answers", "minibatches", "eval_every", "eval_problems", "workers"):
        least = 2 if name == "answers" else 1  # one answer has no other to be compared with
        if getattr(config, name) < least:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(config, name)}; need {least} or more")
    began = now()
    run_dir, engine_config = Path(config.run_dir).resolve(), config.engine_config()
    with RayEngine.from_config(engine_config) as engine:
        trainer = TrainerActor(
            checkpoint_folder(engine_config.model),
            run_dir,
            BLOCK_SIZE,
            config.minibatches,
            config.learning_rate,
            config.updates,
            config.workers,
        )
        lines = learn(engine, trainer, config)
        trainer.export()
    write_record(lines, asdict(config), began, run_dir / "record.json")


if __name__ == "__main__":
    main()
