"""Guesses: continuations of an answer that one causal pass should verify at once.

A guess is a prefix of the most likely drafts, in which one of the less likely tokens may stand. A tokens are accepted:
the longest right prefix of any guess. New drafts exist after the longest guess that is right as a whole, of F tokens.
What is accepted beyond F is drafted by an older pass, which costs `STALE_SHARE` of a token each. So guesses are chosen
for (1 - STALE_SHARE) · E[A] + STALE_SHARE · E[F], greedily: a gain that was computed before bounds what it is now.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lopa_ray.decoding.branch_budget import CostBudget

Alternatives = Sequence[tuple[int, float]]
"""The tokens that a position may get and their probabilities, the draft first."""

Guess = tuple[int, ...]

STALE_SHARE = 0.45
"""Accepted tokens that a round loses per token of its drafts' age (measured with the model of the package; 0.2 to 0.9
change little)."""

MIN_REPLACED = 0.02  # less probable guesses with a replaced draft are not looked at
CERTAIN = 0.999  # no draft counts as more probable

REPEATED = 0.2
"""Factor of a token's weight if the token before it is the same, and if the draft after it is: masks do not know of
each other, so two of them often draft one token. This and the next two are fitted to the model of the package."""

DRAFT_LOGIT = 0.5
"""Added to the logit of each draft: what is drafted without knowing the drafts before it is more often right if these
are right."""

STALE_LOGIT = 2.5  # subtracted from logits of stale drafts, most from the first: it follows a wrong token


def reweigh(drafts: Sequence[Alternatives], last: int, age: int) -> list[Alternatives]:
    """The same tokens, with probabilities closer to how often they are right when all before them are. A draft that
    repeats a neighbour gives way to a token that is then more probable. `last`: the token before all."""
    reweighed: list[Alternatives] = []
    for at, alternatives in enumerate(drafts):
        behind = drafts[at + 1][0][0] if at + 1 < len(drafts) else -1
        factor = math.exp(DRAFT_LOGIT + STALE_LOGIT * (1 / (at + age) - 1 / (at + 1)))
        weights = []
        for token, probability in alternatives:
            repeats = (token == last) + (token == behind)
            weights.append((token, probability * factor * REPEATED**repeats))
            factor = 1.0  # the draft's alone
        rest = max(0.0, 1 - sum(probability for _, probability in alternatives))
        total = rest + sum(weight for _, weight in weights) or 1.0
        if alternatives[0][0] in (last, behind):
            weights.sort(key=lambda weighed: -weighed[1])
        reweighed.append([(token, weight / total) for token, weight in weights])
        last = weights[0][0]
    return reweighed


@dataclass(slots=True)
class _Path:
    """The most likely drafts, with another token at one of the positions."""

    at: int  # drafts before that position; of the path without one the number of all drafts
    token: int
    ratio: float  # the probability of a prefix with this token, divided by that with the draft in its place
    chosen: list[int] = field(default_factory=list)  # lengths of the guesses that are chosen, ascending


def choose_guesses(drafts: Sequence[Alternatives], age: int, budget: CostBudget) -> list[Guess]:
    """As many guesses as the budget takes, one at least; they gain tokens. `age`: tokens that were taken since the
    drafts were made, 1 at least."""
    main = _Path(len(drafts), -1, 1.0)
    probable = list(accumulate((min(d[0][1], CERTAIN) for d in drafts), lambda p, q: p * q, initial=1.0))
    sums = list(accumulate(probable[1:], initial=0.0))
    paths = [main]
    if budget.most > 1:
        paths += [
            _Path(at, token, probability / max(of_draft, 1e-6))
            for at, ((_, of_draft), *others) in enumerate(drafts)
            for token, probability in others
            if probable[at] * probability >= MIN_REPLACED
        ]

    branched: list[_Path] = []  # with a guess that is chosen, other than `main`

    def gain(path: _Path, length: int) -> float:
        at, ratio, chosen = min(path.at, length), path.ratio, path.chosen
        if chosen:
            new = ratio * max(0.0, sums[length] - sums[chosen[-1]])
        else:
            shared = main.chosen[-1] if main.chosen else 0
            new = ratio * (sums[length] - sums[at]) + max(0.0, sums[at] - sums[shared])
        continued = 0.0  # the probability that a longer chosen guess is right too
        longer = len(drafts) + 1
        if (following := bisect_right(chosen, length)) < len(chosen):
            longer = chosen[following]
            continued = ratio * probable[longer]
        if path is main:
            for other in branched:
                if length <= other.at < longer:
                    continued += other.ratio * probable[other.chosen[0]]
        if following:
            shorter = chosen[following - 1]
        else:
            within = bisect_right(main.chosen, at)
            shorter = main.chosen[within - 1] if within else -age
        fresh = (length - shorter) * (ratio * probable[length] - continued)
        return (1 - STALE_SHARE) * new + STALE_SHARE * fresh

    # While nothing is chosen a gain has a short formula. Of a few hundred candidates few are looked at again.
    heap: list[tuple[float, int, int]] = []
    for index, path in enumerate(paths):
        at, ratio = path.at, path.ratio
        for length in range(0 if path is main else at + 1, len(drafts) + 1):
            right = ratio * probable[length]
            if path is not main and right < MIN_REPLACED:
                break
            accepted = sums[length] if path is main else sums[at] + ratio * (sums[length] - sums[at])
            first_gain = (1 - STALE_SHARE) * accepted + STALE_SHARE * (length + age) * right
            heap.append((-first_gain, index, length))
    heapq.heapify(heap)
    guesses: list[Guess] = []
    while heap and len(guesses) < budget.most:
        _, index, length = heapq.heappop(heap)
        path = paths[index]
        now = gain(path, length)
        if heap and -heap[0][0] > now + 1e-9:
            heapq.heappush(heap, (-now, index, length))
            continue
        if guesses and not budget.wants(now):
            break
        if path is not main and not path.chosen:
            branched.append(path)
        insort(path.chosen, length)
        tokens = [alternatives[0][0] for alternatives in drafts[:length]]
        if path is not main:
            tokens[path.at] = path.token
        guesses.append(tuple(tokens))
        budget.take(now)
    return guesses[: budget.num_branches]
