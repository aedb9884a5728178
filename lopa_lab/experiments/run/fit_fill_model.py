"""Fits the `FillModel` that comes with the package to the states of its own decodes.

Shape suffixes: N masked positions of all examples, F features, H hidden units, B blocks of all examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_lab.bench.decoding import results_of
from lopa_lab.experiments.run.fill_examples import BlockExample, ObservedVerifiedSession
from lopa_lab.word_problems import Problem
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.verified.fill_model import FEATURES, OUTPUTS, FillModel
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.protocol.sampling_params import Ranking

BRANCHES = 8
"""Branches of the decodes that give the examples."""
RULES: tuple[dict[str, Any], ...] = (
    *({"decoder": "lopa"} for _ in range(5)),
    {"decoder": "fast_dllm", "cache": "prefix"},
    {"decoder": "fast_dllm", "cache": "dual"},
    {"decoder": "block_diffusion", "block_size": 16},
    {"decoder": "lopa", "window_attention": "block_causal"},
    {"decoder": "multi_block", "block_size": 8},
    {"decoder": "fast_dllm", "cache": "prefix", "confidence_threshold": 1.0},
    {"decoder": "vanilla", "block_size": 32},
)
"""The rules of these decodes, by their changes of settings: problems take them in turns, the usual one more often."""
HIDDEN_UNITS = 32
EPOCHS = 80
BLOCKS_PER_BATCH = 256
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-4
DIGITS = 4
"""Decimal digits of a parameter in the file."""


@dataclass(frozen=True, slots=True)
class FittedFillModel:
    """A fit."""

    parameters: Mapping[str, Any]
    """Parameters of a `FillModel`."""
    blocks: int
    """Examples."""
    before: float
    """Mean log-likelihood of an example by the network that the fit began with, in nats."""
    after: float


class FillNetwork(nn.Module):
    """The network of `FillModel`, on standardised features."""

    def __init__(self, inputs: Tensor) -> None:
        """`inputs` [N, F] float32 are of all examples: their mean and deviation are folded into the weights."""
        super().__init__()
        self.mean, self.deviation = inputs.mean(0), inputs.std(0) + 1e-6
        self.hidden = nn.Linear(len(FEATURES), HIDDEN_UNITS)
        self.output = nn.Linear(HIDDEN_UNITS, len(OUTPUTS))
        self.block = nn.Linear(2 * HIDDEN_UNITS + 1, 1)

    def forward(self, inputs: Tensor, block_of_row: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
        """Outputs [N, 3] and, for each block, the logit of whether anything passes [B].

        `inputs` [N, F] float32, `block_of_row` int64 [N], ascending from 0.
        """
        units = F.silu(self.hidden((inputs - self.mean) / self.deviation))
        index = block_of_row[:, None].expand(-1, HIDDEN_UNITS)
        zeros = units.new_zeros(blocks, HIDDEN_UNITS)
        mean = zeros.scatter_reduce(0, index, units, "mean", include_self=False)
        most = zeros.scatter_reduce(0, index, units, "amax", include_self=False)
        count = torch.bincount(block_of_row, minlength=blocks).log1p()[:, None]
        return self.output(units), self.block(torch.cat((mean, most, count), 1))[:, 0]

    def log_likelihoods(self, examples: Sequence[BlockExample]) -> Tensor:
        """The log-probability of what was filled in each block: [B], float32."""
        sizes = torch.tensor([len(example.passes) for example in examples])
        block_of_row = torch.repeat_interleave(torch.arange(len(examples)), sizes)
        inputs = torch.from_numpy(np.concatenate([example.features for example in examples]))
        passes = torch.from_numpy(np.concatenate([example.passes for example in examples])).float()
        keeps = torch.from_numpy(np.concatenate([example.keeps for example in examples])).float()
        fallback = torch.tensor([example.fallback for example in examples])
        outputs, any_logit = self(inputs, block_of_row, len(examples))

        def by_block(of_rows: Tensor) -> Tensor:
            return torch.zeros(len(examples)).index_add(0, block_of_row, of_rows)

        any_passes = by_block(passes) > 0
        log_none = by_block(F.logsigmoid(-outputs[:, 0]))
        log_any = torch.log(-torch.expm1(log_none.clamp(max=-1e-6)))
        of_set = by_block(_log_bernoulli(outputs[:, 0], passes)) - log_any
        of_block = torch.where(any_passes, of_set, 0.0) + _log_bernoulli(any_logit, any_passes.float())
        first = sizes.cumsum(0) - sizes
        has_fallback = fallback >= 0
        normaliser = by_block(outputs[:, 1].exp()).log()
        of_fallback = outputs[first + fallback.clamp(min=0), 1] - normaliser
        of_block = of_block + torch.where(has_fallback, of_fallback, 0.0)
        filled = passes.clone()
        filled[first[has_fallback] + fallback[has_fallback]] = 1
        of_tokens = by_block(_log_bernoulli(outputs[:, 2], keeps) * filled)
        return of_block + of_tokens

    def parameters_of_model(self) -> dict[str, Any]:
        """The parameters of a `FillModel`."""
        hidden = self.hidden.weight / self.deviation
        block = self.block.weight[0]
        tensors = {
            "hidden": hidden.T,
            "hidden_bias": self.hidden.bias - hidden @ self.mean,
            "output": self.output.weight.T,
            "output_bias": self.output.bias,
            "block_mean": block[:HIDDEN_UNITS],
            "block_max": block[HIDDEN_UNITS:-1],
            "block": torch.stack((block[-1], self.block.bias[0])),
        }
        return {name: _rounded(tensor.tolist()) for name, tensor in tensors.items()}


def _log_bernoulli(logits: Tensor, happened: Tensor) -> Tensor:
    """The log-probability of each of `happened` (0 or 1): float32 of the same shape as `logits`."""
    return -F.binary_cross_entropy_with_logits(logits, happened, reduction="none")


def _rounded(values: Any) -> Any:
    return round(values, DIGITS) if isinstance(values, float) else [_rounded(value) for value in values]


def fit_fill_models(
    engine: Engine, config: Config, problems: Sequence[Problem], rounds: int, tell: Callable[[str], None]
) -> dict[str, Mapping[str, Any]]:
    """The parameters of a model for each ranking, with the decode settings of `config` otherwise.

    `tell` gets a line after each round. Raises SettingsError, and the first error that ends a request.
    """
    parameters: dict[str, Mapping[str, Any]] = {}
    for ranking in get_args(Ranking):
        verified = {
            "lookahead": "verified",
            "acceptance": "exact",
            "num_branches": BRANCHES,
            "ranking": ranking,
        }
        changes = ({"decode": verified | rule} for rule in RULES)
        settings = [Config.parse(config.given(), change).decode for change in changes]
        for number, fitted in enumerate(fit_in_rounds(engine, problems, settings, rounds), 1):
            parameters[ranking] = fitted.parameters
            tell(
                f"{ranking}, round {number}: {fitted.blocks} blocks, mean log-likelihood {fitted.before:.3f} before "
                f"and {fitted.after:.3f} after"
            )
    return parameters


def fit_in_rounds(
    engine: Engine, problems: Sequence[Problem], settings: Sequence[GenerationSettings], rounds: int
) -> Iterator[FittedFillModel]:
    """Decode the problems and fit a model to what was seen, and again with the drafts of that model.

    `settings` ask for an exact verified lookahead; problems take them in turns. The drafts of the first round need no
    model. Raises the first error that ends a request.
    """
    model = None
    for _ in range(rounds):
        examples: list[BlockExample] = []
        sessions = [
            engine.create_session(p.question, s) for p, s in zip(problems, cycle(settings), strict=False)
        ]
        results_of(engine, [ObservedVerifiedSession(session, model, examples) for session in sessions])
        fitted = fit_fill_model(examples)
        yield fitted
        model = FillModel(dict(fitted.parameters))


def fit_fill_model(examples: Sequence[BlockExample], seed: int = 0) -> FittedFillModel:
    """The `FillModel` of the highest likelihood, by AdamW. Raises ValueError without examples."""
    if not examples:
        raise ValueError("there are no examples to fit a model to")
    torch.manual_seed(seed)
    network = FillNetwork(torch.from_numpy(np.concatenate([example.features for example in examples])))
    before = network.log_likelihoods(examples).mean().item()
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = -(-len(examples) // BLOCKS_PER_BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * batches)
    for _ in range(EPOCHS):
        order = torch.randperm(len(examples)).tolist()
        for batch in range(batches):
            loss = -network.log_likelihoods([examples[at] for at in order[batch::batches]]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    after = network.log_likelihoods(examples).mean().item()
    return FittedFillModel(network.parameters_of_model(), len(examples), before, after)


def fill_models_text(parameters: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of `fill_models.json`: the parameters of each ranking's model, a line for each."""
    lines = ",\n".join(
        f"{json.dumps(ranking)}:{json.dumps(of_ranking, separators=(',', ':'))}"
        for ranking, of_ranking in parameters.items()
    )
    return f"{{\n{lines}\n}}\n"
