"""Trajectory: how an answer came about, for trainers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

from pydantic import ConfigDict

from lopa_ray.decoding.branch_budget import BranchSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.protocol.outcome import BlockView, Decision
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.scoring import ChooseTokens, Drafted

_DESCRIBED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Edit:
    """A decision on a position of the answer that a later one replaced."""

    __pydantic_config__ = _DESCRIBED

    index: int
    """Index of the position in `ReplayedAnswer`; where nothing is given, returned tokens have the same."""
    step: int
    """The step that decided so."""
    token_id: int
    """The token that it was then; the mask token if the step took a token back."""


@dataclass(frozen=True, slots=True)
class ReplayedAnswer:
    """All positions of the answer, to the end of the last block that was begun."""

    __pydantic_config__ = _DESCRIBED

    token_ids: list[int]
    """Ids, also behind the stop. A position that the answer did not need has the mask token."""
    step_map: list[int]
    """The step that decided each of them; 0: it is given, or masked."""
    stop: int
    """How many of them stand before the answer's end, the token that ends it included."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """How an answer came about. Steps are denoising steps, from 1. A forward that decides nothing of the answer, such
    as one that stores K/V, is none, and tokens that a causal pass decides have a step each. With exact drafts, and with
    guesses of decoder self_speculation, all fields are those of one branch."""

    __pydantic_config__ = _DESCRIBED

    prompt_token_ids: list[int]
    token_ids: list[int]
    """The returned tokens, which the next lists are about."""
    step_map: list[int]
    """The step that decided each token, and the last one of an edited token; 0: the request gives it."""
    block_map: list[int] | None
    """The block that each token is in, from 0; null if the answer has none."""
    logprobs: list[float]
    """Log-probability of each token at its step, under the distribution that it was drawn from: at the request's
    temperature (1 where that is 0), after penalties, biases, top-p and top-k, over the tokens that a constraint allows,
    and without the mask token. 0 for tokens that were not chosen by the model."""
    raw_logprobs: list[float]
    """The same at temperature 1 and without any of these changes: the model's own."""
    entropies: list[float | None] | None
    """Entropies of the distributions of `logprobs`, in nats, if they are asked for; null for a token that was not
    drawn from one."""
    edits: list[Edit]
    """Decisions that did not last, in the order of positions and steps."""
    replay: ReplayedAnswer
    on_policy: bool
    """Whether the rule took every token from one state of one branch: not with forks that compete, a draft of the
    answer, drafts that need not be exact, and drafts of one pass that another accepts (S2D2)."""
    weight_version: int
    """The version of the weights in the last step; 0: those that were loaded."""
    seed: int
    decoder: str
    settings: dict[str, Any]
    """The settings that are not defaults; of exact drafts those of one branch, which decode the same."""
    weight_versions: list[int | None] | None = None
    """The version of the weights that decided each token, unless all have `weight_version`; null for a token that the
    request gives."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A trajectory that was written as JSON."""
        edits = [Edit(**edit) for edit in values["edits"]]
        return cls(**{**values, "edits": edits, "replay": ReplayedAnswer(**values["replay"])})


_Step: TypeAlias = tuple[int, int]
"""Number of the rule step; and the position, where a causal pass decides several, one after the other."""


class _Decided(NamedTuple):
    """What stands at a position."""

    step: _Step
    decision: Decision
    replaced: tuple[tuple[_Step, int], ...]  # steps and tokens of earlier decisions


class TrajectoryBuilder:
    """Makes the trajectory of one request from its steps."""

    def __init__(self, session: DecodeSession) -> None:
        self._session = session
        self._decided: dict[int, _Decided] = {}  # by position
        self._versions: list[int] = []  # of the weights, by rule step
        self._version = 0  # in the last step
        self._blocks: tuple[BlockView, ...] = ()
        self._on_policy = self._is_of_one_branch and not session.draft

    @property
    def _is_of_one_branch(self) -> bool:
        """Whether lookahead, if there is any, decides what one branch does."""
        s = self._session.settings
        if not isinstance(s, LookaheadSettings) or s.branch_limit == 1:
            return True
        return s.is_verified and s.acceptance == "exact"

    def add_step(self, plan: Plan, step: TraceStep, weight_version: int) -> None:
        winner, self._version = plan.branches[step.winner], weight_version

        def decide(number: int, decision: Decision) -> _Decided:
            position = decision.position if decision.position <= winner.causal_stop else 0
            at = len(self._versions) + number, position
            before = self._decided.get(decision.position)
            replaced = () if before is None else (*before.replaced, (before.step, before.decision.token))
            # A fork may fill what the same pass has masked: no forward sees that mask.
            return _Decided(at, decision, tuple(edit for edit in replaced if edit[0] != at))

        step.update(self._decided, decide)
        self._versions += [weight_version] * len(step.rule_steps)
        self._blocks = step.blocks
        scoring = winner.scoring
        self._on_policy &= not (isinstance(scoring, ChooseTokens) and isinstance(scoring.memory, Drafted))

    def build(self, canvas: Sequence[int], offsets: Sequence[int], stop: int) -> Trajectory:
        """The trajectory of an answer that stands on `canvas`, and of which the tokens at `offsets` are returned;
        `stop`: see `ReplayedAnswer`."""
        settings, first = self._session.settings, len(self._session.prompt)
        decided = [self._decided.get(first + at) for at in range(len(canvas))]
        steps = {step for one in decided if one for step in (one.step, *(at for at, _ in one.replaced))}
        number = {step: at for at, step in enumerate(sorted(steps), 1)}
        step_map = [0 if one is None else number[one.step] for one in decided]
        of_tokens = [decided[at] for at in offsets]
        versions = [None if one is None else self._versions[max(one.step[0], 1) - 1] for one in of_tokens]
        blocks = [at for at, view in enumerate(self._views) for _ in range(max(first, view.start), view.stop)]
        if isinstance(settings, BranchSettings) and self._is_of_one_branch:
            settings = settings.of_one_branch()
        if settings.suffix:  # the canvas has it behind what the request asked for
            settings = settings.replace(max_new_tokens=self._session.given.holes[0].stop)
        other = settings.model_dump(mode="json", exclude_defaults=True)
        return Trajectory(
            prompt_token_ids=list(self._session.prompt),
            token_ids=[canvas[at] for at in offsets],
            step_map=[step_map[at] for at in offsets],
            block_map=[blocks[at] for at in offsets] if blocks else None,
            logprobs=[0.0 if one is None else _logprob(one.decision) for one in of_tokens],
            raw_logprobs=[0.0 if one is None else one.decision.logprob for one in of_tokens],
            entropies=[one and one.decision.draw and one.decision.draw.entropy for one in of_tokens]
            if settings.trajectory == "entropies"
            else None,
            edits=[
                Edit(index, number[step], token)
                for index, one in enumerate(decided)
                for step, token in (one.replaced if one else ())
            ],
            replay=ReplayedAnswer(list(canvas), step_map, stop),
            on_policy=self._on_policy,
            weight_version=self._version,
            weight_versions=None if {*versions} <= {None, self._version} else versions,
            seed=settings.seed,
            decoder=settings.decoder,
            settings={
                name: value
                for name, value in settings.given("json").items()
                if name in other or name == "decoder"
            },
        )

    @property
    def _views(self) -> Iterator[BlockView]:
        """The blocks of the answer."""
        return (view for view in self._blocks if view.stop > len(self._session.prompt))


def _logprob(decision: Decision) -> float:
    draw = decision.draw
    return decision.logprob if draw is None or draw.token != decision.token else draw.logprob
