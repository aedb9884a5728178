"""Fits the `FillModel` that comes with the package to the states of its own decodes.

Shape suffixes: N masked positions of all examples, F features, H hidden units, B blocks of all examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.decoding.filling_session import RuleBlock
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.verified.draft_tree import Draft
from lopa_ray.decoding.verified.fill_model import FEATURES, OUTPUTS, Floats, features, report_features
from lopa_ray.decoding.verified.verified_session import VerifiedSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport

HIDDEN_UNITS = 16
EPOCHS = 40
BLOCKS_PER_BATCH = 2048
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-4
DIGITS = 4
"""Decimal digits of a parameter in the file."""


@dataclass(frozen=True, slots=True)
class BlockExample:
    """A block of a state, as it was before the state was scored, and what the rule filled in it then."""

    features: Floats
    """[positions, F] float32."""
    passes: npt.NDArray[np.bool_]
    """[positions] bool: the probability passed the threshold."""
    fallback: int
    """Index of the position that a complete block filled because none passed; -1: none."""
    keeps: npt.NDArray[np.bool_]
    """[positions] bool: the chosen token is that of the report from before."""


@dataclass
class PendingExample:
    """A state that the coming step scores."""

    draft: Draft
    blocks: list[RuleBlock]
    features: Floats
    tokens: list[int]


@dataclass
class Examples:
    """The examples of many requests."""

    blocks: list[BlockExample] = field(default_factory=list)


class ObservedVerifiedSession(VerifiedSession):
    """Verified lookahead that keeps what became of its states."""

    def __init__(self, session: DecodeSession, examples: Examples) -> None:
        """In the place of a verified session that has not begun."""
        assert isinstance(session, VerifiedSession) and isinstance(session.settings, LookaheadSettings)
        self._examples = examples
        self._pending: list[PendingExample | None] = []
        super().__init__(session._rule, session.settings)

    def _plan(self, num_branches: int) -> Plan:
        plan = super()._plan(num_branches)
        self._pending = [self._observe(draft) for draft in self._drafts]
        return plan

    def _observe(self, draft: Draft) -> PendingExample | None:
        source, blocks = self._states.nearest(draft.fills), draft.session.threshold_blocks()
        threshold = getattr(self.settings, "confidence_threshold", 0.0)
        if source is None or not blocks:
            return None
        report = report_features(source, threshold)
        positions = [position for block in blocks for position in block.positions]
        if not all(position in report.row_of for position in positions):
            return None
        beyond = source.behind.union(position for position, _ in draft.fills - source.ahead)
        rows = np.array([report.row_of[position] for position in positions])
        tokens = [report.tokens[row] for row in rows]
        return PendingExample(draft, blocks, features(blocks, report, rows, beyond), tokens)

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        threshold = getattr(self.settings, "confidence_threshold", 0.0)
        pending, self._pending = self._pending, []
        outcome = super()._advance(plan, reports)
        for branch in {rule_step.branch for rule_step in outcome.rule_steps} - {None}:
            assert branch is not None
            example = pending[branch]
            if (
                example is not None
            ):  # states that the rule was in; others are not like those that it will be in
                self._examples.blocks += _block_examples(example, reports[branch], threshold)
        return outcome


def _block_examples(pending: PendingExample, report: BranchReport, threshold: float) -> list[BlockExample]:
    row_of = {position: row for row, position in enumerate(report.positions.tolist())}
    first, examples = 0, []
    for block in pending.blocks:
        span = slice(first, first := first + len(block.positions))
        rows = [row_of[position] for position in block.positions]
        passes = report.probabilities[rows] > threshold
        fallback = -1 if passes.any() or not block.complete else int(report.scores[rows].argmax())
        keeps = report.tokens[rows] == np.array(pending.tokens[span])
        examples.append(BlockExample(pending.features[span], passes, fallback, keeps))
    return examples


class FillNetwork(nn.Module):
    """The network of `FillModel`, on standardised features."""

    def __init__(self, inputs: Tensor) -> None:
        """`inputs` [N, F] float32 are those of all examples: their mean and deviation are folded into the weights."""
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


def _rounded(values: Any) -> Any:
    return round(values, DIGITS) if isinstance(values, float) else [_rounded(value) for value in values]


def fit_fill_model(examples: Sequence[BlockExample], seed: int = 0) -> dict[str, Any]:
    """The parameters of a `FillModel` of the highest likelihood, by AdamW."""
    torch.manual_seed(seed)
    network = FillNetwork(torch.from_numpy(np.concatenate([example.features for example in examples])))
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = -(-len(examples) // BLOCKS_PER_BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * batches)
    for _ in range(EPOCHS):
        order = torch.randperm(len(examples)).tolist()
        for batch in range(batches):
            chosen = [examples[at] for at in order[batch::batches]]
            loss = _negative_log_likelihood(network, chosen)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.parameters_of_model()


def _negative_log_likelihood(network: FillNetwork, examples: Sequence[BlockExample]) -> Tensor:
    """The mean over blocks of the negative log-probability of what was filled."""
    sizes = torch.tensor([len(example.passes) for example in examples])
    block_of_row = torch.repeat_interleave(torch.arange(len(examples)), sizes)
    inputs = torch.from_numpy(np.concatenate([example.features for example in examples]))
    passes = torch.from_numpy(np.concatenate([example.passes for example in examples])).float()
    keeps = torch.from_numpy(np.concatenate([example.keeps for example in examples])).float()
    fallback = torch.tensor([example.fallback for example in examples])
    outputs, any_logit = network(inputs, block_of_row, len(examples))

    def by_block(of_rows: Tensor) -> Tensor:
        return torch.zeros(len(examples)).index_add(0, block_of_row, of_rows)

    any_passes = by_block(passes) > 0
    log_none = by_block(F.logsigmoid(-outputs[:, 0]))
    log_any = torch.log(-torch.expm1(log_none.clamp(max=-1e-6)))
    of_set = by_block(-F.binary_cross_entropy_with_logits(outputs[:, 0], passes, reduction="none")) - log_any
    log_likelihood = torch.where(any_passes, of_set, 0.0)
    log_likelihood = log_likelihood - F.binary_cross_entropy_with_logits(
        any_logit, any_passes.float(), reduction="none"
    )
    first = sizes.cumsum(0) - sizes
    has_fallback = fallback >= 0
    normaliser = by_block(outputs[:, 1].exp()).log()
    filled = passes.clone()
    filled[first[has_fallback] + fallback[has_fallback]] = 1
    of_fallback = outputs[first + fallback.clamp(min=0), 1] - normaliser
    log_likelihood = log_likelihood + torch.where(has_fallback, of_fallback, 0.0)
    of_tokens = -F.binary_cross_entropy_with_logits(outputs[:, 2], keeps, reduction="none") * filled
    return -(log_likelihood + by_block(of_tokens)).mean()
