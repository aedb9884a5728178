"""Recorded against replayed: every difference, in the order of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lopa_ray.conformance.cases import Case, Difference, MalformedCaseError, token_ids
from lopa_ray.plan import Branch, Plan, StepOutcome

CONFIDENCE_TOLERANCE = 1e-4
"""Branch confidences may differ by this much; everything discrete is compared exactly."""

LOGIT_TOLERANCE = 5e-4


@dataclass(slots=True)
class Run:
    """What a request did when it was replayed."""

    prompt_len: int
    mask_token_id: int
    rounds: list[tuple[Plan, StepOutcome]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The generated ids after the last round."""
        return list(self.rounds[-1][1].canvas) if self.rounds else []


def differences(case: Case, run: Run) -> list[Difference]:
    """All that is not as recorded. Raises MalformedCaseError for a row that cannot be compared."""
    try:
        found = _block_decode(case, run) if case.kind in ("lopa", "d2f") else _windows(case, run)
        return list(found)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise MalformedCaseError(f"cannot compare: {type(error).__name__}: {error}") from None


def _block_decode(case: Case, run: Run) -> Iterator[Difference]:
    row = case.row
    trace = row["trace"]
    for number, ((plan, outcome), recorded) in enumerate(zip(run.rounds, trace, strict=False), 1):
        yield from _round(number, plan, outcome, recorded, run)
    if len(run.rounds) != row["steps"] - 1 or len(run.rounds) != len(trace):
        # Published counts include the round that finds nothing left to do.
        yield Difference("steps", 0, row["steps"], len(run.rounds) + 1)
    yield from _tokens(case, run)


def _tokens(case: Case, run: Run) -> Iterator[Difference]:
    expected = token_ids(case.row, "tokens")
    if run.tokens != expected:
        yield Difference("tokens", 0, expected, run.tokens)


def _round(
    number: int, plan: Plan, outcome: StepOutcome, recorded: dict[str, Any], run: Run
) -> Iterator[Difference]:
    """One round, cause before effect: cache, branches, confidences, winner, fills."""

    def check(what: str, expected: object, got: object) -> Iterator[Difference]:
        if expected != got:
            yield Difference(what, number, expected, got)

    yield from check(
        "cache round",
        {"c": recorded["c"], "u": recorded["u"], "i": recorded["i"]},
        {"c": sum(map(len, plan.cached)), "u": sum(map(len, plan.keep)), "i": plan.start},
    )
    if "il" in recorded:
        yield from check("input length", recorded["il"], len(plan.canvas))
    if "br" in recorded:
        yield from _branches(number, plan, outcome, recorded, run)
    yield from check("fills", recorded["f"], [list(fill) for fill in outcome.fills])
    yield from check("canvas", recorded["q"], list(outcome.canvas))


def _branches(
    number: int, plan: Plan, outcome: StepOutcome, recorded: dict[str, Any], run: Run
) -> Iterator[Difference]:
    # The published decoder evaluates a base without forks twice; here once.
    every = recorded["br"]
    kept = [index for index, branch in enumerate(every) if branch not in every[:index]]
    expected = [every[index] for index in kept]
    got = [list(branch.fills[0]) if branch.fills else None for branch in plan.branches]
    if expected != got:
        yield Difference("branches", number, expected, got)
        return
    lengths = [branch.stop for branch in plan.branches]
    if lengths != [recorded["ln"][index] for index in kept]:
        yield Difference("branch lengths", number, [recorded["ln"][index] for index in kept], lengths)
    masks = [_count_masks(plan, branch, run.mask_token_id) for branch in plan.branches]
    if masks != [recorded["nm"][index] for index in kept]:
        yield Difference("branch masks", number, [recorded["nm"][index] for index in kept], masks)
    confidences = [recorded["cf"][index] for index in kept]
    if not _close(confidences, outcome.confidences):
        yield Difference("confidences", number, confidences, list(outcome.confidences))
    winner = expected.index(every[recorded["w"]])
    if winner != outcome.winner:
        yield Difference("winner", number, winner, outcome.winner)


def _count_masks(plan: Plan, branch: Branch, mask_token_id: int) -> int:
    return plan.input_ids(branch).count(mask_token_id)


def _close(expected: Sequence[float], got: Sequence[float]) -> bool:
    # Written so that a NaN on either side is a difference.
    return len(expected) == len(got) and all(
        abs(a - b) <= CONFIDENCE_TOLERANCE for a, b in zip(expected, got, strict=True)
    )


def _windows(case: Case, run: Run) -> Iterator[Difference]:
    """What was fed call by call, and which call filled each position; columns beyond start and length are
    how many of the positions entered the cache."""
    row = case.row
    columns = len(row["windows"][0]) if row["windows"] else 0
    windows = [[plan.start, len(plan.canvas), sum(map(len, plan.keep))][:columns] for plan, _ in run.rounds]
    for number, (expected, got) in enumerate(zip(row["windows"], windows, strict=False), 1):
        if expected != got:
            yield Difference("windows", number, expected, got)
            break
    filled = {position: outcome.step for _, outcome in run.rounds for position, _ in outcome.fills}
    fill_step = [filled.get(run.prompt_len + at) for at in range(len(run.tokens))]
    if fill_step != row["fill_step"]:
        yield Difference("fill_step", 0, row["fill_step"], fill_step)
    if not len(run.rounds) == row["nfe"] == len(row["windows"]):
        yield Difference("nfe", 0, row["nfe"], len(run.rounds))
    yield from _tokens(case, run)
