"""Decoders that finish one block before they begin the next: what they share. They differ in what a call feeds and
reads (its `Window`) and in the positions it fills (`_filling_rule`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lopa_ray.constraints.token_bitmasks import TokenBitmasks
from lopa_ray.decoding.branching import Fork
from lopa_ray.decoding.filling_session import FillingSession, PlannedBranch, RuleBlock
from lopa_ray.protocol.outcome import BlockView
from lopa_ray.protocol.plan import Branch, Fill, Plan, Segment, Spans


@dataclass(frozen=True, slots=True)
class Window:
    """The rows that a call feeds, reads, scores and stages; the same for all its branches. See `Plan`, `Branch`."""

    input_span: range
    segments: tuple[Segment, ...]
    scored: range
    cached: Spans = ()
    to_stage: Spans = ()
    stage_shared: bool = False
    causal_stop: int = 0
    draft_adapter: bool = False


class BlockwiseSession(FillingSession[list[int]]):
    """One request: all positions that it will have, and the block that is being filled."""

    def _begin(self) -> None:
        super()._begin()
        answer = self.given.canvas(self.settings.max_new_tokens, self.vocabulary.mask_token_id)
        self._ids = self.prompt + answer
        self._begin_block_at(len(self.prompt))

    def _begin_block_at(self, position: int) -> None:
        """Go on to the block of a position, or to the first one behind it that has masks, if there is one."""
        self._block = self._block_at(position)
        while not (open_positions := self._masked_positions(self._block)) and self._block.stop < self.max_len:
            self._block = self._block_at(self._block.stop)
        self._open_positions = open_positions
        """Those of the current block that were masked when it began."""
        self._calls = 0
        """Calls that have filled the current block."""

    # What a decoder provides

    @abstractmethod
    def _block_at(self, position: int) -> range:
        """The block in which `position` lies."""

    @abstractmethod
    def _window(self) -> Window:
        """The window of the coming call."""

    # What they share

    scores_decided = False
    """See `Plan.scores_decided`."""

    @property
    def generated(self) -> list[int]:
        return self._ids[len(self.prompt) :]

    @property
    def exhausted(self) -> bool:
        return not self._masked_positions(range(self._block.start, self.max_len))

    @property
    def _block_answer_span(self) -> range:
        """The current block, less what the prompt has of it."""
        return range(max(self._block.start, len(self.prompt)), self._block.stop)

    def _masked_positions(self, span: range) -> list[int]:
        return [p for p in span if self._ids[p] == self.vocabulary.mask_token_id]

    def _planned_branch(self, fork: Fork) -> PlannedBranch[list[int]]:
        ids = self._ids.copy()
        constraint_state = self._constraint_state(self.generated)
        for position, token in fork.fills:
            ids[position] = token
            if constraint_state is not None:
                constraint_state.fill(position, token)
        return PlannedBranch(fork, ids, constraint_state)

    def _plan(self, num_branches: int) -> Plan:
        window = self._window()
        self._branches = [self._planned_branch(fork) for fork in self._lookahead.next_branches(num_branches)]
        bitmasks = TokenBitmasks()
        return Plan(
            step=self.steps + 1,
            start=window.input_span.start,
            canvas=tuple(self._ids[window.input_span.start : window.input_span.stop]),
            branches=tuple(
                Branch(
                    segments=window.segments,
                    scored=window.scored,
                    fills=branch.fork.fills,
                    to_stage=window.to_stage,
                    bitmask_ids=bitmasks.add(
                        branch.constraint_state, window.scored, scores_decided=self.scores_decided
                    ),
                    causal_stop=window.causal_stop,
                    draw_key=self.draw_key,
                )
                for branch in self._branches
            ),
            cached=window.cached,
            draft_adapter=window.draft_adapter,
            stage_shared=window.stage_shared,
            logit_changes=self.step_logit_changes,
            commit=self._commit,
            sampling_params=self.sampling_params,
            token_bitmasks=bitmasks.unique,
            scores_decided=self.scores_decided,
        )

    def _adopt(self, canvas: list[int]) -> None:
        self._ids = canvas

    def _set_tokens(self, fills: Iterable[Fill]) -> None:
        for position, token in fills:
            self._ids[position] = token

    def _copied(self, canvas: list[int]) -> list[int]:
        return canvas.copy()

    def _is_masked(self, position: int) -> bool:
        return self._ids[position] == self.vocabulary.mask_token_id

    @property
    def _block_is_final(self) -> bool:
        return not self._masked_positions(self._block)

    def _end_step(self, branch: Branch) -> None:
        """When this block is final, go on to the next one that has masks, if there is one."""
        self._calls += bool(branch.scored)
        if self._block_is_final and self._block.stop < self.max_len:
            self._begin_block_at(self._block.stop)

    def _keeps_blocks(self, fills: Sequence[Fill]) -> bool:
        return self._calls > 0 and len(self.scored_masks()) > len(fills)

    def threshold_blocks(self, beyond: Collection[Fill] = ()) -> list[RuleBlock] | None:
        if not self._fills_by_threshold:
            return None
        ids, mask = self._branches[0].canvas, self.vocabulary.mask_token_id
        filled = {position for position, _ in beyond}
        positions = [p for p in self.plan().branches[0].scored if ids[p] == mask and p not in filled]
        return [RuleBlock(positions, complete=True)] if positions else []

    @property
    def _fills_by_threshold(self) -> bool:
        """Whether the coming call fills what passes a threshold of probability, or the best-ranked position."""
        return False

    def block_views(self) -> tuple[BlockView, ...]:
        first = len(self.prompt)
        views = [BlockView(0, first, "in_cache", 0, True)]
        end = first + len(self.generated)
        while first < end:
            block = self._block_at(first)
            masks = len(self._masked_positions(block))
            is_final = not masks and (block != self._block or self._block_is_final)
            state = "in_cache" if is_final else "active"
            views.append(BlockView(first, block.stop, state, masks, block.start <= self._block.start))
            first = block.stop
        return tuple(views)
