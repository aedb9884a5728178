"""Scoring: what a branch asks about its scored positions."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class StateBefore:
    """The state of the canvas with whose distributions a branch's are compared (KLASS)."""

    inputs: tuple[tuple[int, int], ...] | None
    """Position and token id wherever its inputs are not the branch's. None: there is no state before, and its
    probabilities count as 0."""


@dataclass(frozen=True, slots=True)
class Credits:
    """What raises the logits of earlier favourites (CreditDecoding). A position's most likely token gets a credit of
    its probability to the power of `gamma` in the same call; a logit rises by `alpha` × ln(credit + 1)."""

    alpha: float
    gamma: float
    earned: tuple[tuple[int, int, float], ...]  # position, token, and the credit from calls before


@dataclass(frozen=True, slots=True)
class ShadowSlots:
    """Rows beside a branch that has no cache, one for each position of `Branch.scored`, which verify its tokens (WINO).
    A slot sees all slots, and of the branch all but the position that it is for; the branch sees no slot."""

    positions: range  # of the slots, as the rows that decide the scored positions have them
    input_id: int
    tokens: tuple[int, ...]  # the token at each scored position, whose probability is asked for


@dataclass(frozen=True, slots=True)
class Drafted:
    """The call on the plan's canvas that has drafted the positions which the branch scores (S2D2)."""

    tokens: tuple[int, ...]  # the draft of each scored position
    segments: tuple[tuple[int, int], ...]  # of that call


@dataclass(frozen=True, slots=True)
class ContinuationDrafts:
    """What the model's draft head makes of a branch without masks: beams of tokens that may follow the token which is
    decided behind the accepted tokens of `Branch.fills`. A step drafts as much as any of its branches asks for."""

    beams: int  # at most MAX_DRAFT_BEAMS
    depth: int  # tokens of a beam, at most MAX_DRAFT_DEPTH


MAX_DRAFT_BEAMS, MAX_DRAFT_DEPTH = 4, 8

Memory: TypeAlias = StateBefore | ShadowSlots | Drafted | Credits | ContinuationDrafts | None

MEMORY_COLUMNS: dict[type[Memory], int] = {
    NoneType: 0,
    StateBefore: 1,
    ShadowSlots: 1,
    Drafted: 3,
    Credits: 2,
    ContinuationDrafts: 2 * MAX_DRAFT_BEAMS * MAX_DRAFT_DEPTH,
}
"""Columns of `BranchReport.memory`."""

DRAW_COLUMNS = 2  # columns of `BranchReport.draws`


@dataclass(frozen=True, slots=True)
class ChooseTokens:
    """Choose a token at each position, by `Plan.sampling_params`."""

    draw_key: int = 0  # tokens are drawn by the seed, this number and the position; 0 where none are drawn
    bitmask_ids: tuple[int, ...] = ()
    """The index in `Plan.token_bitmasks` of the tokens that each position of `Branch.scored` may get (-1 if it is not
    scored); empty without a constraint."""
    memory: Memory = None  # what a rule asks that looks back at earlier calls


CHOOSE = ChooseTokens()  # without draws and without a constraint


@dataclass(frozen=True, slots=True)
class DenoiseTokens:
    """Draw a token at each position of a canvas. The logits may condition the canvas of the next step."""

    draws: tuple[float, ...]  # for each position of `Branch.scored` a number from 0 to 1 to draw it by


@dataclass(frozen=True, slots=True)
class ScoreTargets:
    """Compute the probability of one given token at each position."""

    tokens: tuple[int, ...]  # one for each position of `Branch.scored`


@dataclass(frozen=True, slots=True)
class ScoreCandidates:
    """Compute the log-probabilities of the same tokens at each position."""

    tokens: tuple[int, ...]


Scoring: TypeAlias = ChooseTokens | DenoiseTokens | ScoreTargets | ScoreCandidates
"""`BranchReport` says how each of them is answered."""
