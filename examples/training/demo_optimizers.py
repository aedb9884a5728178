"""Changes of the demo model's weights: the optimizers, their learning rate, and the average of the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch

from lopa_ray.model.transformer import Transformer

AVERAGED_STEPS = 1000
"""How many steps the average of the weights reaches back, about."""


def learning_rate(step: int, highest: float, warmup: int, steps: int, decay: int) -> float:
    """The rate of a step: it rises for `warmup` steps, stays, and falls to nothing over the last `decay` of `steps`."""
    return highest * min(1.0, (step + 1) / warmup, (steps - step) / decay)


class Optimizers:
    """Muon for the matrices of the layers, AdamW for everything else, at one rate."""

    def __init__(self, model: Transformer) -> None:
        matrices: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for name, weight in model.named_parameters():
            (matrices if weight.dim() == 2 and name.startswith("layers.") else others).append(weight)
        self.muon = torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, rate: float) -> None:
        """Update the weights at this learning rate, and forget their gradients."""
        for optimizer in (self.muon, self.adam):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()  # type: ignore[no-untyped-call]  # torch's types lack it
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """State of both."""
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of both."""
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


class AveragedModel:
    """A model whose weights are the exponential average of another model's: what is exported."""

    def __init__(self, model: Transformer) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: Transformer, step: int) -> None:
        """Take in the weights after a step; in the first steps the average reaches back less far."""
        share = max(1 / AVERAGED_STEPS, 9 / (10 + step))
        for average, weight in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(weight, share)
