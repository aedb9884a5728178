"""What the ingress and a decode group send each other: OpenAI's shapes on neither side, no tensors.

The ingress turns an HTTP request into an `ChoicesRequest`; the group answers with `ChoicesOutput`s: `RequestAccepted`
(or it raises one of the errors of `lopa_ray.errors`), then text deltas, canvas snapshots and one `ChoiceFinished`
per choice.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lopa_ray.engine.session_factory import Prompt
from lopa_ray.text.tool_format import ToolCall

OwnedId: TypeAlias = tuple[str, str]
"""The client of a request, and its id there."""

ChoiceFinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ChoicesRequest:
    """One HTTP request, checked as far as that is possible without the model."""

    id: str
    """What its client calls it; no two running requests of one client have the same."""
    prompts: tuple[Prompt, ...]
    """Choice i belongs to prompt i // n."""
    settings: Mapping[str, Any]
    """Decode settings that the request names; the group's defaults fill the rest."""
    client: str = ""
    """Who asks, `key N` or an address: ids are the client's own, and clients share a group fairly."""
    priority: int = 0
    """Of the requests of one client, those with the lowest value get slots first."""
    n: int = 1
    raw: bool = False
    """Text prompts go in as they are, without the chat template."""
    parse_special: bool = True
    """In raw text special tokens are recognised."""
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions that the model may call, in the shape of OpenAI's chat API."""
    forced_tools: tuple[str, ...] = ()
    """Names of functions one of which the answer calls; empty: the model writes what it likes."""
    parallel_tool_calls: bool = True
    """A choice may have more than one call."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template."""
    echo: bool = False
    """The prompt's text comes in front of the answer."""
    logprobs: bool = False
    """`TextDelta`s and `ChoiceFinished` carry the log-probabilities of their tokens."""
    stream: bool = False
    """Send `TextDelta`s as text becomes final."""
    stream_canvas: bool = False
    """Send a `CanvasSnapshot` per step."""
    trace: bool = False
    """`ChoiceFinished` carries the events of a Chrome trace."""
    deadline_s: float | None = None
    """Seconds from arrival after which the request ends."""
    partial: bool = False
    """At the deadline, end with what was decided so far."""

    @property
    def owned_id(self) -> OwnedId:
        """What tells it from all running requests."""
        return self.client, self.id


@dataclass(frozen=True, slots=True)
class RequestAccepted:
    """The request was checked and waits for a slot, or has one."""

    prompt_tokens: tuple[int, ...]
    """Per prompt: its own, and those that the request gives of the answer."""
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One decided token, in the pass that decided it. Log-probabilities are of the plain softmax."""

    id: int
    token: str
    """Its text; bytes that are no text of their own show as U+FFFD."""
    bytes: bytes
    logprob: float
    top: tuple[tuple[int, str, builtins.bytes, float], ...]
    """(id, text, bytes, log-probability) of the most likely tokens, as many as were asked for."""
    in_text: builtins.bytes
    """What the text has of `bytes`: nothing of a special token, and the first token may lack its space."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new of a call."""

    index: int
    """Which call of the choice."""
    name: str | None
    """In the first delta of a call."""
    arguments: str
    """JSON text behind that of the deltas before."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What can no longer change of a choice, behind all deltas before it: text, reasoning, or a call."""

    choice: int
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None
    tokens: int = 0
    """Tokens of the choice up to here."""


@dataclass(frozen=True, slots=True)
class CellView:
    """One position of the canvas; `step` decided it (0: still masked, and `text` is empty, or given by the request)."""

    text: str
    step: int


@dataclass(frozen=True, slots=True)
class BranchView:
    """One evaluated branch: "anchor" or "+3", what it tried, how sure it was."""

    name: str
    tried: str
    confidence: float


@dataclass(frozen=True, slots=True)
class RuleStepView:
    """One step of the rule of filling: the index of the branch whose report it took (None: none of this step's), and
    the positions that it filled, counted from the beginning of the answer."""

    branch: int | None
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CanvasSnapshot:
    """A choice after one of its steps."""

    choice: int
    step: int
    cells: tuple[CellView, ...]
    branches: tuple[BranchView, ...]
    winner: int
    rule_steps: tuple[RuleStepView, ...]
    seconds: float
    """Since the request arrived."""


@dataclass(frozen=True, slots=True)
class ChoiceStats:
    """What a choice cost."""

    steps: int
    forwards: int
    rule_steps: int
    """Steps of the rule of filling."""
    tokens: int
    """Up to and including the first EOS, and not beyond a stop string."""
    seconds: float
    """From arrival to the last step."""
    queued_seconds: float
    """From arrival to the first step."""
    seed: int
    phases_seconds: Mapping[str, float]
    """Seconds in plan, scatter, commit, forward, gather, select, over the steps that it took part in."""
    commit_bytes: int
    """K/V and boundary rows that entered the cache."""

    @property
    def tpf(self) -> float:
        """Tokens per forward: `tokens` ÷ `steps`."""
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The end of a choice."""

    choice: int
    text: str
    """The whole of it, equal to its deltas joined, as reasoning and calls are."""
    finish_reason: ChoiceFinishReason | None
    """None: the deadline came first."""
    stats: ChoiceStats
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    reasoning_tokens: int = 0
    """Tokens that `reasoning` has when it is encoded."""
    tool_calls: tuple[ToolCall, ...] = ()
    trace: tuple[Mapping[str, Any], ...] = field(default=())
    """Events in Chrome's trace format."""


ChoicesOutput: TypeAlias = RequestAccepted | TextDelta | CanvasSnapshot | ChoiceFinished


@dataclass(frozen=True, slots=True)
class PromptToTokenize:
    """A text, which goes in as it is, or a chat."""

    prompt: Prompt
    add_special_tokens: bool = True
    """A text gets the tokens that the tokenizer puts around every text; a chat has those of its template."""
    parse_special: bool = True
    """In a text special tokens are recognised."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """See `ChoicesRequest`."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """See `ChoicesRequest`."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt as a model gets it."""

    tokens: tuple[int, ...]
    token_strings: tuple[str, ...]
    """Each token as the vocabulary writes it."""
    max_model_len: int
    """How many tokens a prompt and its answer may have together."""
