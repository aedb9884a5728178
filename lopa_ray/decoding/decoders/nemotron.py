"""Nemotron-Labs-Diffusion's `generate` (arXiv 2607.05722): a block at a time, after a context that is stored causally.

Blocks follow the prompt, wherever it ends. The prompt, and each block without masks, enters the cache by a causal call
of its own, whose last row decides the next block's first token, its seed; blocks of one position are autoregressive
decoding. With `causal_context` false storing calls see all that they feed, and blocks have no seed. A seed that ends
the answer ends it at once; the published code makes one more call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from pydantic import Field

from lopa_ray.config.generation_settings import Conflict
from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.block_causal import BlockCausalSession, BlockCausalSettings
from lopa_ray.decoding.given_tokens import GivenTokens
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.request_checks import check_generated
from lopa_ray.decoding.unmasking_rules import rank_by_score, select_above_threshold
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.vocabulary import Vocabulary


class NemotronSettings(BlockCausalSettings):
    """Nemotron-Labs-Diffusion (arXiv 2607.05722): blocks one after the other, with a causal context, each from the
    token that its context predicts. With block_size 1 it decodes autoregressively."""

    decoder: Literal["nemotron"] = "nemotron"

    confidence_threshold: float | None = Field(default=0.9, ge=0.0, le=1.0)
    """Masked positions with at least this probability are filled, and the best-ranked position in any case. None: that
    position alone, as many passes as there are masks."""

    causal_context: bool = True
    """Prompt and finished blocks are stored by a causal pass, which also decides the next block's first token. false:
    by a pass without a mask, which decides nothing."""

    max_thinking_tokens: int | None = Field(default=None, ge=0)
    """Thinking budget: a block that reaches beyond so many tokens gets `end_think_token_id` where the budget ends,
    unless a block before it has that token. None: no budget."""

    end_think_token_id: int | None = Field(default=None, ge=0)
    """The token that ends thinking, for `max_thinking_tokens`."""

    @property
    def prompt_attention(self) -> PromptAttention:
        return PromptAttention("causal" if self.causal_context else "one_block")

    @property
    def refused(self) -> Mapping[str, str]:
        return {
            **super().refused,
            "lookahead": "drafts of later steps would need K/V of blocks that only a causal pass stores; "
            "use lookahead lopa, leave {} out, or use decoder self_speculation",
        }

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        given = [*filter(self.is_changed, ("max_thinking_tokens", "end_think_token_id"))]
        if len(given) == 1:
            why = "without the other half of a thinking budget"
            remedy = "set both max_thinking_tokens and end_think_token_id, or none"
            yield given[0], f" {getattr(self, given[0])} {why}; {remedy}"
        other = self.constraint_setting or self.giving_setting
        if given and other is not None:
            why = "the token that ends thinking is put in whatever the answer has to match, or is given of it"
            lead = f" {self.max_thinking_tokens} with {other}"
            yield "max_thinking_tokens", f"{lead}: {why}; leave one of them out"


class NemotronSession(BlockCausalSession):
    settings: NemotronSettings

    def __init__(
        self,
        prompt: Sequence[int],
        settings: NemotronSettings,
        vocabulary: Vocabulary,
        constraint: Constraint | None = None,
        given: GivenTokens | None = None,
    ) -> None:
        """Raises as `DecodeSession`, and SettingsError for an `end_think_token_id` that is not a token, or an end."""
        if settings.end_think_token_id is not None:
            check_generated([settings.end_think_token_id], vocabulary, "end_think_token_id")
        super().__init__(prompt, settings, vocabulary, constraint, given)
        if settings.min_tokens and settings.end_think_token_id in self.end_token_ids:
            raise SettingsError(
                f"min_tokens {settings.min_tokens} with end_think_token_id {settings.end_think_token_id}, which ends "
                "the answer and is put in wherever the budget ends; leave one of them out",
                setting="min_tokens",
            )

    @property
    def draw_key(self) -> int:
        """Blocks of one position draw by position alone, so that self-speculation gives the same tokens."""
        key = super().draw_key
        return min(key, 1) if self.settings.block_size == 1 else key

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Confidences come from the plain softmax, at whichever temperature tokens are drawn."""
        params = super().sampling_params
        return replace(params, confidence_temperature=1.0) if self.settings.temperature > 0 else params

    @property
    def step_limit(self) -> int:
        """Every call decides a position or stores a block."""
        return 2 * self.settings.max_new_tokens + 1

    def _block_at(self, position: int) -> range:
        first, size = len(self.prompt), self.settings.block_size
        if position < first:
            return range(first)
        start = position - (position - first) % size
        return range(start, min(start + size, self.max_len))

    def _view_stop(self, position: int) -> int:
        """A seed sees nothing after it."""
        block = self._block_at(position)
        return position + 1 if self.settings.causal_context and position == block.start else block.stop

    @property
    def _stores(self) -> bool:
        """Whether the coming call stores what is before the current block."""
        return self._cached_end < self._block.start

    def _window(self) -> Window:
        start, block, causal = self._cached_end, self._block, self.settings.causal_context
        if not self._stores:
            return super()._window()
        has_seed = causal and self._end_of_thinking != block.start and self._canvas.is_masked(block.start)
        span = range(start, block.start)
        return Window(
            span,
            self._segments(span),
            range(block.start, block.start + has_seed),
            cached=(range(start),) if start else (),
            to_stage=(range(start, block.start),),
            stage_shared=True,
            causal_stop=span.stop if causal else 0,
        )

    @property
    def _end_of_thinking(self) -> int | None:
        """The position at which the current block gets the token that ends thinking; None: nowhere."""
        first, block, most = len(self.prompt), self._block, self.settings.max_thinking_tokens
        if most is None or block.stop - first <= most:
            return None
        if self.settings.end_think_token_id in self._canvas.ids[first : block.start]:
            return None
        return max(block.start, first + most)

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        decisions = super().choose(scores, constraint_state)
        position, token = self._end_of_thinking, self.settings.end_think_token_id
        if self._stores and position is not None and token is not None:
            decisions.append(Decision(position, token, probability=1.0, logprob=0.0, top_logprobs=()))
        return decisions

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        threshold = self.settings.confidence_threshold
        if threshold is None:
            return rank_by_score(scores)[:1]
        return select_above_threshold(scores, threshold)


NEMOTRON = Decoder(NemotronSession, NemotronSettings(**SHORT, block_size=8, num_branches=3))
