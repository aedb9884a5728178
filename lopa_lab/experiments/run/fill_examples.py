"""Examples for a `FillModel`: states of decodes as they were before a forward, and what it then showed.

Shape suffix: F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.unmasking_rules import RuleBlock
from lopa_ray.decoding.verified.draft_tree import Draft, DraftTree
from lopa_ray.decoding.verified.fill_model import FillModel, Floats, features, report_features
from lopa_ray.decoding.verified.verified_session import VerifiedSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport


@dataclass(frozen=True, slots=True)
class BlockExample:
    """A block of a state, as it was before the state was scored, and what the rule filled in it then."""

    features: Floats
    """[positions, F] float32."""
    passes: npt.NDArray[np.bool_]
    """[positions] bool: the probability passed the threshold."""
    fallback: int
    """Index of the best-ranked position, if the block filled it because too few passed; -1: none."""
    keeps: npt.NDArray[np.bool_]
    """[positions] bool: the chosen token is the same as in the report from before."""


@dataclass(frozen=True, slots=True)
class PendingExample:
    """A state that the coming step scores."""

    blocks: list[RuleBlock]
    features: Floats
    """[positions of all blocks, F] float32."""
    tokens: npt.NDArray[np.int64]
    """[positions of all blocks] int64: choices of the report from before."""

    def block_examples(self, report: BranchReport) -> list[BlockExample]:
        """The examples of the blocks, now that the state has a report."""
        row_of = {position: row for row, position in enumerate(report.positions.tolist())}
        first, examples = 0, []
        for block in self.blocks:
            span = slice(first, first := first + len(block.positions))
            rows = [row_of[position] for position in block.positions]
            passes = report.probabilities[rows] > block.threshold
            fallback = int(report.scores[rows].argmax()) if passes.sum() < block.least else -1
            passes &= fallback < 0
            keeps = report.tokens[rows] == self.tokens[span]
            examples.append(BlockExample(self.features[span], passes, fallback, keeps))
        return examples


class TreeOfModel(DraftTree):
    """Drafts of another model than the package's."""

    def __init__(self, settings: GenerationSettings, model: FillModel | None) -> None:
        """Make a tree. Without a model drafts repeat what the last report says."""
        super().__init__(settings)
        self._model = model


class ObservedVerifiedSession(VerifiedSession):
    """Verified lookahead that collects examples."""

    def __init__(self, session: DecodeSession, model: FillModel | None, examples: list[BlockExample]) -> None:
        """Take the place of a verified session that has not begun. `examples` grows with each step."""
        assert isinstance(session, VerifiedSession) and isinstance(session.settings, LookaheadSettings)
        self._model, self._examples = model, examples
        self._pending: list[PendingExample | None] = []
        super().__init__(session._rule, session.settings)

    def _begin(self) -> None:
        super()._begin()
        self._tree = TreeOfModel(self.settings, self._model)

    def _plan(self, num_branches: int) -> Plan:
        plan = super()._plan(num_branches)
        self._pending = [self._observe(draft) for draft in self._drafts]
        return plan

    def _observe(self, draft: Draft) -> PendingExample | None:
        source, blocks = self._states.nearest(draft.fills), draft.base.rule_blocks(draft.beyond, draft.calls)
        if source is None or not blocks:
            return None
        report = report_features(source, blocks[0].threshold)
        positions = [position for block in blocks for position in block.positions]
        if not all(position in report.row_of for position in positions):
            return None
        beyond = source.behind.union(position for position, _ in draft.fills - source.ahead)
        rows = np.array([report.row_of[position] for position in positions])
        tokens = np.array(report.tokens, np.int64)[rows]
        return PendingExample(blocks, features(blocks, report, rows, beyond), tokens)

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        """Only states that the rule was in become examples: other states are unlike those that it will be in."""
        pending, self._pending = self._pending, []
        outcome = super()._advance(plan, reports)
        for branch in dict.fromkeys(rule_step.branch for rule_step in outcome.rule_steps):
            if branch is not None and (example := pending[branch]) is not None:
                self._examples += example.block_examples(reports[branch])
        return outcome
