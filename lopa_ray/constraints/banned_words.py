"""A constraint to answers in which certain words do not occur (`bad_words`), and its use beside another constraint.

A word occurs where a run of whole tokens spells it, by itself or behind a space: to ban "he" leaves the token "the" as
it is. Positions are filled in any order, so a word may be completed at its beginning as well as at its end. An
automaton over tokens settles both, and follows all words, and all ways to spell them, at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.constraint_builder import MAX_CELLS, MAX_CLASSES
from lopa_ray.errors import SettingsError


def ban_words(words: Sequence[str], token_bytes: Sequence[bytes], eos_token_id: int) -> Constraint:
    """The constraint to answers without any of `words`; `token_bytes` [vocabulary]: what each token spells.

    EOS is a token like any other here, so that all else is as without a constraint. Raises SettingsError if the words
    are too many or too long.
    """
    spellings = [prefix + word.strip(" ").encode() for word in words for prefix in (b"", b" ")]
    parts = {
        word[start:stop]
        for word in spellings
        for start in range(len(word))
        for stop in range(start + 1, len(word) + 1)
    }
    texts = sorted(parts.intersection(token_bytes))
    start: frozenset[tuple[int, int]] = frozenset()
    state_of, order = {start: 0}, [start]
    rows: list[list[int | None]] = []
    for state in order:  # grows as new states are found
        row: list[int | None] = []
        for text in texts:
            target = _continue(state, text, spellings)
            if target is not None and target not in state_of:
                state_of[target] = len(order)
                order.append(target)
            row.append(None if target is None else state_of[target])
        rows.append(row)
        if len(order) * (len(texts) + 1) > MAX_CELLS:
            raise SettingsError("bad_words: the words are too many or too long; leave some out")

    # The state after EOS, which nothing leads to here, and the dead one come behind the others.
    dead = len(order) + 1
    transitions = np.full((len(texts) + 1, dead + 1), dead, np.uint16)
    transitions[0, : len(order)] = 0
    for at, row in enumerate(rows):
        transitions[1:, at] = [dead if target is None else target for target in row]
    class_of = {text: at for at, text in enumerate(texts, 1)}
    token_classes = np.array([class_of.get(text, 0) for text in token_bytes], np.uint16)
    accepting = np.ones(dead + 1, np.bool_)
    accepting[dead] = False
    return Constraint(token_classes, transitions, accepting, eos_token_id)


def _continue(
    state: frozenset[tuple[int, int]], text: bytes, words: Sequence[bytes]
) -> frozenset[tuple[int, int]] | None:
    """What is spelled so far (word, bytes of it), behind one more token; None if a word is complete."""
    begun = [*state, *((word, 0) for word in range(len(words)))]
    found = frozenset((word, at + len(text)) for word, at in begun if words[word].startswith(text, at))
    return None if any(at == len(words[word]) for word, at in found) else found


def restrict(constraint: Constraint, bans: Constraint) -> Constraint:
    """The answers that `constraint` accepts and that `bans`, made by `ban_words`, accepts as well.

    Raises SettingsError if the two together are too large.
    """
    width = bans.num_states + 1
    pairs, token_classes = np.unique(
        constraint.token_classes.astype(np.int64) * len(bans.transitions) + bans.token_classes,
        return_inverse=True,
    )
    first, second = np.divmod(pairs, len(bans.transitions))
    left, right = (
        constraint.transitions[first].astype(np.int64),
        bans.transitions[second].astype(np.int64),
    )
    after_eos = (constraint.num_states - 1) * width

    def successors(states: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Pairs of states as one number, [classes, states]; -1 where nothing can match any more."""
        a, b = left[:, states // width], right[:, states % width]
        # After EOS it no longer matters which word was begun.
        b = np.where(a == constraint.num_states - 1, 0, b)
        return np.where((a == constraint.num_states) | (b == bans.num_states), -1, a * width + b)

    reachable = frontier = np.zeros(1, np.int64)
    while len(frontier):
        found = np.unique(successors(frontier))
        frontier = np.setdiff1d(found[found >= 0], reachable, assume_unique=True)
        reachable = np.union1d(reachable, frontier)
        if len(reachable) * len(pairs) > MAX_CELLS or len(pairs) >= MAX_CLASSES:
            raise SettingsError(
                f"bad_words: together with the pattern or schema they need {len(reachable)} states for {len(pairs)} "
                "classes of tokens, which is too much; use fewer or shorter words, or a simpler pattern"
            )
    # `after_eos` is larger than all other pairs, whose first state comes before it.
    states = np.union1d(reachable, [after_eos])
    transitions = np.full((len(pairs), len(states) + 1), len(states), np.uint16)
    targets = successors(states)
    alive = targets >= 0
    transitions[:, : len(states)][alive] = np.searchsorted(states, targets[alive])
    accepting = np.append(constraint.accepting[states // width] & bans.accepting[states % width], False)
    return Constraint(
        token_classes.reshape(-1).astype(np.uint16), transitions, accepting, constraint.eos_token_id
    )
