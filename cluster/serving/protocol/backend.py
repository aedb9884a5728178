"""Backend: what the HTTP layer needs of the side that decodes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, TypeVarTuple

from cluster.choices.decision_message import DecisionMessage
from cluster.choices.messages import ChoicesRequest, OwnedId
from cluster.serving.protocol.group import Group
from cluster.serving.protocol.messages import GroupHealth, ReplicaMetrics

RequestT = TypeVar("RequestT", ChoicesRequest, DecisionMessage)
AnswerT = TypeVar("AnswerT")
ArgumentTs = TypeVarTuple("ArgumentTs")
Call: TypeAlias = Callable[[Group, *ArgumentTs], Coroutine[Any, Any, AnswerT]]
StreamingCall: TypeAlias = Callable[[Group, RequestT], AsyncGenerator[AnswerT, None]]


class Backend(Protocol):
    """The groups of all models. A call is a method of `Group`, as in `ask("demo", Group.detokenize, tokens)`."""

    models: Sequence[str]  # ids that requests may name

    def stream(
        self, model: str, call: StreamingCall[RequestT, AnswerT], request: RequestT
    ) -> AsyncGenerator[AnswerT, None]:
        """The outputs of a group for a request. Closing the generator cancels the request. Raises what the call raises,
        and any other LopaError if the group does not answer."""

    async def ask(self, model: str, call: Call[*ArgumentTs, AnswerT], *arguments: *ArgumentTs) -> AnswerT:
        """The answer of one group of the model. Raises what the call raises, OverloadedError if all are busy, and any
        other LopaError if the group does not answer."""

    async def ask_all(
        self, model: str, call: Call[*ArgumentTs, AnswerT], *arguments: *ArgumentTs
    ) -> list[AnswerT]:
        """The answer of every group of the model. Raises what the call raises in all of them, and ClusterError if it
        fails in some, which are named, or one does not answer."""

    async def cancel(self, owned_id: OwnedId) -> bool:
        """End a running request; false if its client has none of that id."""

    async def metrics(self) -> list[ReplicaMetrics]:
        """The metrics of every group of every model, as they are now."""

    async def status(self) -> list[GroupHealth]:
        """The state of every group. Raises LopaError if one does not answer."""
