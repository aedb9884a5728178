"""Group: the calls that one decode group answers. A method here and in `GroupServer` is all that a new call needs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from cluster.choices.decision_message import DecisionMessage
from cluster.choices.messages import ChoicesOutput, ChoicesRequest, PromptToTokenize, TokenizeResponse
from cluster.serving.protocol.messages import GroupState, ModelDefaults, WorkersOfGroup
from lopa_ray.decisions.answers import DecisionResult


class Group(Protocol):
    """One decode group. `Backend` calls it, by the name of a method here."""

    def generate(self, request: ChoicesRequest) -> AsyncGenerator[ChoicesOutput, None]:
        """The deadline counts from the call. Raises PromptError and SettingsError (the request is wrong),
        OverloadedError, DeadlineError, RequestCancelledError, and any other LopaError (the group failed)."""

    def decide(self, request: DecisionMessage) -> AsyncGenerator[DecisionResult, None]:
        """Answer questions: one result. Raises what `generate` raises; the `setting` of a PromptError is the field."""

    async def tokenize(self, given: PromptToTokenize) -> TokenizeResponse:
        """The tokens that `generate` decodes. Raises PromptError for what cannot be encoded."""

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special tokens included. Raises PromptError for ids outside of the vocabulary."""

    async def defaults(self) -> ModelDefaults:
        """The settings of requests that set nothing."""

    async def workers(self) -> WorkersOfGroup:
        """The workers as they are now."""

    async def resize(self, num_workers: int) -> WorkersOfGroup:
        """See `actors.group.master.Master.resize`. Raises SettingsError beyond the bounds of the configuration."""

    async def control(self, method: str, arguments: Mapping[str, Any]) -> GroupState:
        """Call a method of `AsyncRayEngine`; returns the state after it. Raises what it raises."""
