"""The constraint for answers without certain words (`bad_words`), and its combination with another constraint.

A word occurs where a run of whole tokens spells it, alone or after a space: banning "he" does not change the token
"the". Any token of a word may be decided last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.constraint_builder import MAX_CLASSES
from lopa_ray.constraints.transition_table import TransitionTable
from lopa_ray.errors import SettingsError

# Bounds of time and memory, because some words can be spelled in very many ways.
MAX_STATES = 4_000
MAX_CELLS = 10_000_000  # states times classes of tokens

Spelled: TypeAlias = frozenset[tuple[int, int]]
"""The prefixes of words that the last tokens spell: pairs of the index of a word and the number of its bytes."""

AT_SPACE = -1  # the offset of the space before a word


def ban_words(words: Sequence[str], token_bytes: Sequence[bytes], eos_token_id: int) -> Constraint:
    """The constraint that accepts answers without any of `words`, with EOS like any other token. `token_bytes`
    [vocabulary]: the bytes of each token. Raises SettingsError if there are too many ways to spell the words."""
    spellings = [word.strip(" ").encode() for word in words]
    pieces = _pieces(spellings, token_bytes)
    begun = _continued([(word, at) for word in range(len(spellings)) for at in (0, AT_SPACE)], pieces)
    order: list[Spelled] = [frozenset()]
    state_of = {order[0]: 0}
    rows: list[dict[bytes, int | None]] = []
    """Rows per state: text of a token → next state, or None if a word is complete.

    Texts that are not listed lead to the same state as from the start.
    """
    for state in order:  # the list grows as new states are found
        row: dict[bytes, int | None] = {}
        for text, spelled in (begun if not state else _continued(state, pieces)).items():
            target = spelled | begun.get(text, frozenset())
            complete = any(at == len(spellings[word]) for word, at in target)
            if not complete and target not in state_of:
                state_of[target] = len(order)
                order.append(target)
            row[text] = None if complete else state_of[target]
        rows.append(row)
        if len(order) > MAX_STATES or len(order) * len(begun) > MAX_CELLS:
            raise SettingsError(
                "bad_words: there are too many ways to spell these words with this model's tokens; leave out long "
                "words, or those that repeat a character",
                setting="bad_words",
            )

    # The state after EOS, which no transition reaches here, and the dead state come after the others.
    dead = len(order) + 1
    texts = sorted({text for row in rows for text in row})
    class_of = {text: at for at, text in enumerate(texts, 1)}
    transitions = np.full((len(texts) + 1, dead + 1), dead, np.uint16)
    transitions[:, : len(order)] = 0
    for at, row in enumerate(rows):
        for text, target_index in row.items():
            # The transitions of the start hold for all states that do not override them.
            to = slice(len(order)) if at == 0 else at
            transitions[class_of[text], to] = dead if target_index is None else target_index
    used, token_classes = np.unique([class_of.get(text, 0) for text in token_bytes], return_inverse=True)
    table = TransitionTable.of_dense(transitions[used])
    return Constraint(token_classes.astype(np.uint16), table, np.ones(dead, np.bool_), eos_token_id)


def _pieces(words: Sequence[bytes], token_bytes: Sequence[bytes]) -> dict[tuple[int, int], list[bytes]]:
    """(index of a word, offset in bytes) → the texts of tokens that continue the word at that offset."""
    known = set(token_bytes) - {b""}
    longest = max(map(len, known), default=0)
    pieces = {}
    for index, word in enumerate(words):
        spaced = b" " + word
        for start in range(len(spaced)):
            stops = range(start + 1, min(start + longest, len(spaced)) + 1)
            pieces[index, start + AT_SPACE] = [
                spaced[start:stop] for stop in stops if spaced[start:stop] in known
            ]
    return pieces


def _continued(
    places: Iterable[tuple[int, int]], pieces: dict[tuple[int, int], list[bytes]]
) -> dict[bytes, Spelled]:
    """Text of a token that continues a word at one of `places` → the prefixes of words that are spelled after it."""
    prefixes: dict[bytes, set[tuple[int, int]]] = {}
    for word, at in places:
        for text in pieces[word, at]:
            prefixes.setdefault(text, set()).add((word, at + len(text)))
    return {text: frozenset(spelled) for text, spelled in prefixes.items()}


def restrict(constraint: Constraint, bans: Constraint) -> Constraint:
    """The constraint for answers that both `constraint` and `bans`, of `ban_words`, accept. Raises SettingsError if the
    product of the two is too large."""
    width = bans.num_states + 1
    pairs, token_classes = np.unique(
        constraint.token_classes.astype(np.int64) * bans.transitions.num_classes + bans.token_classes,
        return_inverse=True,
    )
    if len(pairs) * constraint.num_states > 2 * MAX_CELLS:
        raise SettingsError(_too_large(constraint.num_states, len(pairs)), setting="bad_words")
    first, second = np.divmod(pairs, bans.transitions.num_classes)
    left = constraint.transitions.dense()[first].astype(np.int64)
    right = bans.transitions.dense()[second].astype(np.int64)
    after_eos = (constraint.num_states - 1) * width

    def successors(states: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The next pair of states as one number, int64 [classes, states]; -1 where no match is possible any more."""
        a, b = left[:, states // width], right[:, states % width]
        # After EOS the state of `bans` is irrelevant, so it is set to 0.
        b = np.where(a == constraint.num_states - 1, 0, b)
        return np.where((a == constraint.num_states) | (b == bans.num_states), -1, a * width + b)

    seen = np.zeros(after_eos + width, np.bool_)
    frontier = np.zeros(1, np.int64)
    while len(frontier):
        seen[frontier] = True
        count = int(seen.sum())
        if count > MAX_STATES or count * len(pairs) > MAX_CELLS or len(pairs) >= MAX_CLASSES:
            raise SettingsError(_too_large(count, len(pairs)), setting="bad_words")
        successor_states = np.unique(successors(frontier))
        successor_states = successor_states[successor_states >= 0]
        frontier = successor_states[~seen[successor_states]]
    # `after_eos` is larger than all other pairs, because their first state has a lower index.
    states = np.union1d(np.flatnonzero(seen), [after_eos])
    transitions = np.full((len(pairs), len(states) + 1), len(states), np.uint16)
    targets = successors(states)
    alive = targets >= 0
    transitions[:, : len(states)][alive] = np.searchsorted(states, targets[alive])
    accepting = constraint.accepting[states // width] & bans.accepting[states % width]
    classes, table = token_classes.reshape(-1).astype(np.uint16), TransitionTable.of_dense(transitions)
    return Constraint(classes, table, accepting, constraint.eos_token_id)


def _too_large(num_states: int, num_classes: int) -> str:
    return (
        f"bad_words: together with the pattern or schema they need {num_states} states or more for {num_classes} "
        "classes of tokens, which is too much; use fewer or shorter words, or a simpler pattern"
    )
