"""Trainer: the model in training, its optimizer, its log, and the checkpoint by which an interrupted run goes on."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.families.family import published_rows
from lopa_ray.model.families.native import family_of
from lopa_ray.model.native_implementation import load_model
from replay import Decisions, decisions_of, log_probabilities
from rollouts import Group
from tracerl import advantages, objective

TOLERANCE = 1e-4
"""The most by which a recorded log-probability may differ from the trainer's own, in nats."""


class ReplayError(Exception):
    """A trajectory is of other weights than the trainer's, or its log-probabilities are not those of its steps."""


class Trainer:
    """Trains all weights of a model, and counts its updates: the version of the weights."""

    def __init__(
        self,
        model: Path,
        run_dir: Path,
        block_size: int,
        minibatches: int,
        learning_rate: float,
        updates: int,
        threads: int,
    ) -> None:
        """Load the model of the folder `model` in float32, or what `save` left in the folder of the run.

        `block_size`: the decoder's; `minibatches`: steps of the optimizer per update; `learning_rate`: of the first
        update, from which it falls to nothing over so many `updates`.
        """
        torch.set_num_threads(threads)
        self.model = load_model(model, dtype=torch.float32, device="cpu").requires_grad_(True)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), learning_rate, (0.9, 0.98), weight_decay=0.0
        )
        self.version = 0
        self.lines: list[dict[str, float]] = []
        self._source, self._run_dir = model, run_dir
        self._block_size, self._minibatches = block_size, minibatches
        self._learning_rate, self._updates = learning_rate, updates
        if self._checkpoint.exists():
            state = torch.load(self._checkpoint, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.version, self.lines = state["version"], state["lines"]

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Replay all answers, and update the weights by the groups whose rewards differ, each of them once. Returns
        figures of the update.

        Raises ReplayError, and changes nothing, unless all recorded log-probabilities are the trainer's own.
        """
        parts: list[list[tuple[Decisions, Tensor, Tensor]]] = []
        off: list[Tensor] = []
        for group in groups:
            if {answer.weight_version for answer in group.answers} != {self.version}:
                raise ReplayError(f"got answers of other weights than those of version {self.version}")
            of_answers, of_group = advantages(torch.tensor(group.rewards)), []
            for decisions in decisions_of(group.answers, self._block_size, self.model.config.mask_token_id):
                with torch.no_grad():
                    old = log_probabilities(self.model, decisions, self._block_size)
                off.append((old - decisions.recorded).abs().max())
                of_group.append((decisions, old, of_answers[decisions.answer]))
            if of_answers.any():
                parts.append(of_group)
        differs = torch.stack(off).max().item() if off else 0.0
        if not differs <= TOLERANCE:  # nor for one that is no number
            raise ReplayError(
                f"a log-probability differs by {differs:.1e} from the trainer's; allowed: {TOLERANCE}"
            )
        for weights in self.optimizer.param_groups:
            weights["lr"] = self._learning_rate * (1 - self.version / self._updates)
        random.Random(self.version).shuffle(parts)
        for first in range(min(self._minibatches, len(parts))):
            self._step([part for of_group in parts[first :: self._minibatches] for part in of_group])
        self.version += 1
        rewards = torch.tensor([reward for group in groups for reward in group.rewards])
        return {"reward": rewards.mean().item(), "learned_from": len(parts), "replay_differs": differs}

    def _step(self, parts: Sequence[tuple[Decisions, Tensor, Tensor]]) -> None:
        """One step of the optimizer, by decisions, their log-probabilities before the update and their advantages.
        Products are in bfloat16."""
        count = sum(len(decisions.token) for decisions, _, _ in parts)
        for decisions, old, advantage in parts:
            with torch.autocast("cpu", torch.bfloat16):
                logprobs = log_probabilities(self.model, decisions, self._block_size)
            (-objective(logprobs, old, advantage) / count).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights, in float32, by their names in a checkpoint's files."""
        config, weights = self.model.config, {}
        for name, weight in self.model.named_parameters():
            parts = published_rows(family_of(config), config, name, len(weight))
            pieces = weight.detach().split(list(parts.values()))
            weights.update({part: piece.clone() for part, piece in zip(parts, pieces, strict=True)})
        return weights

    def save(self, line: dict[str, float]) -> None:
        """Add a line to the log, and replace the checkpoint, of which an interrupted call leaves the old one."""
        self.lines.append(line)
        unfinished = self._checkpoint.with_suffix(".tmp")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self._run_dir.mkdir(parents=True, exist_ok=True)
        torch.save(state | {"version": self.version, "lines": self.lines}, unfinished)
        unfinished.replace(self._checkpoint)
        (self._run_dir / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def log(self) -> list[dict[str, float]]:
        """The lines of the log."""
        return self.lines

    def export(self) -> None:
        """Write the model as a checkpoint in float32, with the tokenizer of the one that the run began with."""
        folder = self._run_dir / "model"
        save_model(self.model, folder, dtype=torch.float32)
        for file in self._source.glob("tokenizer*.json"):
            shutil.copy(file, folder)

    @property
    def _checkpoint(self) -> Path:
        return self._run_dir / "checkpoint.pt"
