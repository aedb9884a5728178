"""Backend: what the HTTP layer needs of the side that decodes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.choices.decision_message import DecisionMessage
from cluster.choices.messages import (
    ChoicesOutput,
    ChoicesRequest,
    OwnedId,
    PromptToTokenize,
    TokenizedPrompt,
)
from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.errors import LopaError


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """The only output of a request that is wrong, between a replica and the ingress, which raises its error.

    Serve writes what a replica raises to its log, and an error message may repeat what was sent.
    """

    error: LopaError


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of a model's groups."""

    model: str
    status: str
    """HEALTHY, or what Serve is doing about them."""
    replicas: int
    """Groups that take requests."""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The branch workers of one group."""

    workers: int
    """Those that take part in steps."""
    pending_workers: int
    """Those that wait for a place in the cluster, load the model, or wait for the next step."""
    target_workers: int
    """How many there should be."""
    last_error: str | None
    """Why the last attempt to get another one failed; None once one came in after it."""


@dataclass(frozen=True, slots=True)
class ReplicaMetrics:
    """The metrics of one group."""

    model: str
    replica: str
    """Serve's id of the replica that has the group."""
    text: str | None
    """Prometheus' text format; None: the replica is starting, or did not answer."""


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What requests to a model get where they set nothing."""

    decoder: str
    settings: Mapping[str, Mapping[str, Any]]
    """Decoder → the values that its decode settings have, as plain values, if a request names that decoder alone, or
    with what `accepted_with` has for it."""
    refused: Mapping[str, str]
    """Decoder that contradicts other settings of the configuration → the error of a request that names it alone."""
    accepted_with: Mapping[str, Mapping[str, Any]]
    """Decoder of `refused` → settings with which a request may name it; not all of these decoders have an entry."""
    max_model_len: int
    """Positions of prompt and answer together."""
    is_demo_model: bool
    """Whether it is the model in the package, which solves word problems only."""


class Backend(Protocol):
    """What the HTTP layer needs of the side that decodes."""

    models: Sequence[str]
    """Ids that requests may name."""

    def generate(self, model: str, request: ChoicesRequest) -> AsyncGenerator[ChoicesOutput, None]:
        """Decode. Closing the generator cancels the request.

        Raises PromptError and SettingsError (the request is wrong), OverloadedError (the client's queue is
        full), DeadlineError, RequestCancelledError, and any other LopaError (the group failed).
        """

    def decide(self, model: str, request: DecisionMessage) -> AsyncGenerator[DecisionResult, None]:
        """Answer questions: one result. Closing the generator cancels the request.

        Raises what `generate` raises; the `setting` of a PromptError is the field.
        """

    async def cancel(self, owned_id: OwnedId) -> bool:
        """End a running request; false if its client has none of that id."""

    async def tokenize(self, model: str, prompt: PromptToTokenize) -> TokenizedPrompt:
        """What `generate` makes of a text without chat template, or of messages, before it decodes.

        Raises PromptError for what cannot be encoded, OverloadedError, and any other LopaError if the group does not
        answer.
        """

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones too. Raises PromptError for ids that the model does not have, and
        otherwise what `tokenize` raises."""

    async def defaults(self, model: str) -> RequestDefaults:
        """What requests to the model get where they set nothing. Raises OverloadedError, and any other LopaError if the
        group does not answer."""

    async def metrics(self) -> list[ReplicaMetrics]:
        """The metrics of every group of every model, as they are now."""

    async def status(self) -> list[GroupStatus]:
        """The state of every group. Raises LopaError if one does not answer."""

    async def workers(self, model: str) -> list[WorkerCounts]:
        """The workers of every group of the model. Raises LopaError if one does not answer."""

    async def resize(self, model: str, num_workers: int) -> list[WorkerCounts]:
        """Have that many workers in every group of the model that runs now, while they decode.

        Returns at once; see `actors.master.Master.resize`. Raises SettingsError beyond the bounds that the
        model's configuration sets, LopaError if a group does not answer.
        """
