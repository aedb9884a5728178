"""What the ingress and a decode group say to each other: OpenAI's shapes on neither side, no tensors.

The ingress turns an HTTP request into a `Job`; the group answers with `Accepted` (or raises one
of the errors of `lopa_ray.errors`), then with pieces, pictures and one `Finished` per choice.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from lopa_ray.errors import LopaError
from lopa_ray.protocol.outcome import FinishReason

Prompt: TypeAlias = str | tuple[int, ...] | tuple[Mapping[str, str], ...]
"""Text, token ids, or chat messages with role and content."""


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request, checked as far as that is possible without the model."""

    id: str
    prompts: tuple[Prompt, ...]
    """Choice i belongs to prompt i // n."""
    settings: Mapping[str, Any]
    """Decode settings that the request names; the group's defaults fill the rest."""
    n: int = 1
    raw: bool = False
    """Text prompts go in as they are, without the chat template."""
    stop: tuple[str, ...] = ()
    echo: bool = False
    """The prompt's text comes in front of the answer."""
    logprobs: bool = False
    """Pieces and results carry the log-probabilities of their tokens."""
    pieces: bool = False
    """Send `Piece`s as text becomes final."""
    pictures: bool = False
    """Send a `CanvasSnapshot` per step."""
    trace: bool = False
    """`Finished` carries the events of a Chrome trace."""
    deadline_s: float | None = None
    """Seconds from arrival after which the request ends."""
    partial: bool = False
    """At the deadline, end with what was decided so far."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job was checked and waits for a slot, or has one."""

    prompt_tokens: tuple[int, ...]
    """Per prompt."""
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One decided token, in the pass that decided it. Log-probabilities are of the plain softmax."""

    token: str
    """Its text; bytes that are no text of their own show as U+FFFD."""
    bytes: bytes
    logprob: float
    top: tuple[tuple[str, builtins.bytes, float], ...]
    """(text, bytes, log-probability) of the most likely tokens, as many as were asked for."""
    shown: bool = True
    """Whether the text has it; special tokens are left out there."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a choice that can no longer change, behind all pieces before it."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """One position of the canvas; `step` decided it (0: still masked, and `text` is empty)."""

    text: str
    step: int


@dataclass(frozen=True, slots=True)
class BranchView:
    """One evaluated branch: "anchor" or "+3", what it tried, how sure it was."""

    name: str
    tried: str
    confidence: float


@dataclass(frozen=True, slots=True)
class CanvasSnapshot:
    """A choice after one of its steps."""

    choice: int
    step: int
    cells: tuple[Cell, ...]
    racers: tuple[BranchView, ...]
    winner: int
    seconds: float
    """Since the job arrived."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What a choice cost."""

    steps: int
    forwards: int
    tokens: int
    """Up to and including the first EOS, and not beyond a stop string."""
    seconds: float
    """From arrival to the last step."""
    queued_s: float
    """From arrival to the first step."""
    seed: int
    phases_s: Mapping[str, float]
    """Seconds in plan, scatter, commit, forward, gather, select, over the steps that it took part in."""
    commit_bytes: int
    """K/V and boundary rows that entered the cache."""

    @property
    def tpf(self) -> float:
        """Tokens per forward: `tokens` ÷ `steps`."""
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a choice."""

    choice: int
    text: str
    """The whole of it, equal to its pieces joined."""
    finish_reason: FinishReason | None
    """None: the deadline came first."""
    figures: RequestStats
    logprobs: tuple[TokenLogprob, ...] = ()
    trace: tuple[Mapping[str, Any], ...] = field(default=())
    """Events in Chrome's trace format."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Instead of everything else, between a replica and the ingress, which raises it.

    Serve writes what a replica raises to its log, and a refusal may repeat what was sent.
    """

    error: LopaError


Message: TypeAlias = Accepted | Piece | CanvasSnapshot | Finished


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How a model's groups are doing."""

    model: str
    status: str
    """HEALTHY, or what Serve is doing about them."""
    replicas: int
    """Groups that take requests."""


@dataclass(frozen=True, slots=True)
class GroupWorkers:
    """The branch workers of one group."""

    workers: int
    """Those who take part in steps."""
    coming: int
    """Those who wait for a place in the cluster, load the model, or wait for the next step."""
    wanted: int
    """How many there should be."""
    problem: str | None
    """Why the last attempt to get another one failed; None once one came in after it."""


class Backend(Protocol):
    """What the HTTP layer needs of whatever decodes."""

    models: Sequence[str]
    """Ids that requests may name."""

    def run(self, model: str, job: Job) -> AsyncGenerator[Message, None]:
        """Decode. Closing the generator cancels the job.

        Raises PromptError and SettingsError (the request is wrong), OverloadedError (the queue is
        full), DeadlineError, RequestCancelledError, and any other LopaError (the group failed).
        """

    async def cancel(self, job_id: str) -> bool:
        """End a running job; false if there is none of that id."""

    async def status(self) -> list[GroupStatus]:
        """Of every group. Raises LopaError if one does not answer."""

    async def workers(self, model: str) -> list[GroupWorkers]:
        """Of every group of the model. Raises LopaError if one does not answer."""

    async def resize(self, model: str, num_workers: int) -> list[GroupWorkers]:
        """Have that many workers in every group of the model that runs now, while they decode.

        Returns at once; see `actors.master.Master.resize`. Raises SettingsError beyond the bounds that the
        model's configuration sets, LopaError if a group does not answer.
        """
