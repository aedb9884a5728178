"""The messages between the ingress and a decode group, without OpenAI's shapes. The group answers a `ChoicesRequest`
with `RequestAccepted`, then text deltas, canvases and one `ChoiceFinished` per choice."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from lopa_ray.decoding.trajectory import Trajectory
from lopa_ray.engine.session_factory import Prompt
from lopa_ray.text.tool_format import ToolCall

OwnedId: TypeAlias = tuple[str, str]  # the client of a request, and its id there
ChoiceFinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ChoicesRequest:
    """One HTTP request, checked as far as that is possible without the model."""

    id: str  # its name at the client; no two running requests of one client have the same
    prompts: tuple[Prompt, ...]  # choice i belongs to prompt i // n
    settings: Mapping[str, Any]  # decode settings that the request names; the group's defaults fill the rest
    client: str = ""  # `key N` or an address; clients share a group fairly
    priority: int = 0  # requests with the lowest value get slots first, among one client's
    n: int = 1
    raw: bool = False  # text prompts go in as they are, without the chat template
    parse_special: bool = True  # in raw text special tokens are recognised
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()  # in the shape of OpenAI's chat API
    forced_tools: tuple[str, ...] = ()  # names of functions, one of which the answer calls
    parallel_tool_calls: bool = True  # a choice may have more than one call
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    echo: bool = False  # the prompt's text comes before the answer
    logprobs: bool = False  # `TextDelta`s and `ChoiceFinished` carry the log-probabilities of their tokens
    stream: bool = False  # send `TextDelta`s as text becomes final
    stream_canvas: bool = False  # send a `ChoiceCanvas` per step
    diffusing: bool = False  # each `TextDelta` with text has all of it so far, and replaces the one before
    trace: bool = False  # `ChoiceFinished` carries the events of a Chrome trace
    deadline_s: float | None = None  # seconds from arrival after which the request ends
    partial: bool = False  # at the deadline, end with what was decided so far

    @property
    def owned_id(self) -> OwnedId:
        return self.client, self.id

    @property
    def functions(self) -> dict[str, Mapping[str, Any]]:
        """The functions, by name."""
        return {tool["function"]["name"]: tool["function"] for tool in self.tools}

    @property
    def has_strict_functions(self) -> bool:
        return any(function.get("strict") for function in self.functions.values())


@dataclass(frozen=True, slots=True)
class RequestAccepted:
    """The request was checked and waits for a slot, or has one."""

    prompt_tokens: tuple[int, ...]  # per prompt: its own, and the given tokens of the answer
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One decided token, in the pass that decided it. Log-probabilities are of the plain softmax."""

    id: int
    token: str  # its text; bytes that are not text by themselves show as U+FFFD
    bytes: bytes
    logprob: float
    top: tuple[tuple[int, str, builtins.bytes, float], ...]  # (id, text, bytes, log-probability)
    in_text: builtins.bytes
    """The part of `bytes` that is in the text: nothing of a special token, and the first token may lack its space."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    index: int  # which call of the choice
    name: str | None  # in the first delta of a call
    arguments: str  # JSON text, which continues the earlier deltas


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next part of a choice that can no longer change: text, reasoning, or a call. With `ChoicesRequest.diffusing`
    text and reasoning are whole, and may change."""

    choice: int
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None
    tokens: int = 0  # tokens of the choice up to here


_SENT = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class CanvasCell:
    """A position of the canvas."""

    __pydantic_config__ = _SENT

    t: str
    """The position's text; empty while it is masked."""
    s: int
    """The step that decided it; 0 while it is masked, if the request gives it, and while it is as in its draft."""


@dataclass(frozen=True, slots=True)
class CanvasBranch:
    """An evaluated branch."""

    __pydantic_config__ = _SENT

    name: str
    """anchor, or +1, +2 … for the other branches."""
    tried: str
    """The branch's fills beyond the anchor."""
    confidence: float | None
    """Where branches compete, the highest wins; verified branches do not compete. Null without a confidence."""


@dataclass(frozen=True, slots=True)
class CanvasRuleStep:
    """A step of the unmasking rule. A step has one; with verified lookahead it may have several."""

    __pydantic_config__ = _SENT

    branch: int | None
    """Index into `branches`: the branch whose report the unmasking rule took. Null if it took none of this step's."""
    positions: tuple[int, ...]
    """Indices into `cells` of its fills."""
    moves: tuple[tuple[int | None, int], ...] = ()
    """Of all that moved before the fills the index where it was (null: it is a new mask), and where it is."""
    inserted: tuple[int, ...] = ()
    """Indices of the masks among these that were inserted between others."""
    deletions: tuple[int, ...] = ()
    """Indices of the cells before which tokens were deleted."""


@dataclass(frozen=True, slots=True)
class CanvasCandidates:
    """The most likely tokens of a position in the pass of a step."""

    __pydantic_config__ = _SENT

    position: int
    """Index into `cells`."""
    tokens: tuple[str, ...]
    """Their texts, the most likely one first."""
    probabilities: tuple[float, ...]
    """Under the plain softmax."""


@dataclass(frozen=True, slots=True)
class ChoiceCanvas:
    """A choice after one of its steps."""

    __pydantic_config__ = _SENT

    choice: int
    step: int
    seconds: float
    """Since the request arrived."""
    cells: tuple[CanvasCell, ...]
    branches: tuple[CanvasBranch, ...]
    winner: int
    """Index into `branches`; with verified lookahead the last accepted draft, or the anchor."""
    rule_steps: tuple[CanvasRuleStep, ...]
    """The denoising steps, in order. Branches after the first step's are accepted drafts."""
    candidates: tuple[CanvasCandidates, ...] = ()
    """Candidates of the positions that the step scored, if the request asks for `top_logprobs`."""


class Cost(BaseModel):
    """The cost of a choice, or of all choices of a request together."""

    model_config = _SENT

    steps: int
    forwards: int
    """Branches that were evaluated."""
    rule_steps: int
    """Steps of the unmasking rule: `steps`, or more with verified lookahead, where one forward may do several."""
    tokens: int
    """Up to and including the first EOS, and not beyond a stop text."""
    tpf: float
    """Tokens per forward: tokens ÷ steps."""
    seconds: float
    """Time from arrival to the last step."""
    queued_seconds: float
    """Time from arrival to the first step."""
    phases_seconds: dict[str, float]
    """Time of each phase, over the steps that the choice took part in."""
    commit_bytes: int
    """K/V that entered the cache."""


class ChoiceCost(Cost):
    seed: int
    """Sent again as the request's `seed`, with n = 1, it gives this choice."""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    choice: int
    text: str  # the whole of it, equal to its deltas joined (`diffusing`: to the last), as reasoning and calls are
    finish_reason: ChoiceFinishReason | None  # None: the deadline came first
    stats: ChoiceCost
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    reasoning_tokens: int = 0  # tokens that `reasoning` has when it is encoded
    tool_calls: tuple[ToolCall, ...] = ()
    trace: tuple[Mapping[str, Any], ...] = field(default=())  # events in Chrome's trace format
    trajectory: Trajectory | None = None  # with the setting `trajectory`


ChoicesOutput: TypeAlias = RequestAccepted | TextDelta | ChoiceCanvas | ChoiceFinished


@dataclass(frozen=True, slots=True)
class PromptToTokenize:
    """A text, which goes in as it is, or a chat."""

    prompt: Prompt
    add_special_tokens: bool = True  # to a text, as the tokenizer does; a chat has its template's
    parse_special: bool = True  # in a text special tokens are recognised
    tools: tuple[Mapping[str, Any], ...] = ()  # see `ChoicesRequest`
    template_variables: Mapping[str, Any] = field(default_factory=dict)  # see `ChoicesRequest`


class TokenizeResponse(BaseModel):
    """The tokens of a prompt."""

    model_config = _SENT

    count: int
    max_model_len: int
    """How many tokens a prompt and its answer may have together."""
    tokens: list[int]
    token_strs: list[str] | None
    """Each token as the vocabulary writes it, if that was asked for."""
