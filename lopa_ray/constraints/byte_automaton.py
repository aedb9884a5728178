"""ByteAutomaton: a regular expression as an automaton over bytes, built by outlines-core over a vocabulary of 256
bytes. `constraint_builder` extends it to tokens: that is faster, and the result is much smaller to send."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from outlines_core import Index, Vocabulary

from lopa_ray.errors import SettingsError

MAX_STATES = 4000

_LETTERS = Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})

# Matches escapes and character classes, in which ^ and $ are not anchors. A class that is not closed extends to the end
# of the text. Otherwise the search for its end from every bracket would take quadratic time.
_NO_ANCHORS = re.compile(r"\\[^Az]|\[\^?\]?(?:\\.?|[^\]\\])*+(?:\]|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton. State 0 is the start. A byte string matches if it leads to an accepting state."""

    transitions: npt.NDArray[np.int32]
    """int32 [states + 1, 256]: the next state. The last state is the dead state, from which no match is possible."""
    accepting: npt.NDArray[np.bool_]
    """Bool [states + 1]: whether a state is accepting."""

    @classmethod
    def from_regex(cls, regex: str, *, trusted: bool = False) -> ByteAutomaton:
        """The automaton of all texts that `regex`, in Rust's syntax with Unicode, matches as a whole. A user's
        expression is normalised (`normalize_regex`) and checked by itself, one of this project (`trusted`) is not.
        Raises SettingsError for an invalid expression, look-around, backreferences, word boundaries, a part that
        matches no text, and too many states. Time and memory have no limit here: `[ab]*a[ab]{30}` has a billion
        states."""
        checked = regex if trusted else normalize_regex(regex)
        try:
            if not trusted:
                _check_syntax(checked)
            # outlines-core rejects expressions that match the empty text, such as a*, so a letter S leads. It uses
            # leftmost-first matching, under which a|ab never matches ab; with \z the automaton follows all
            # alternatives.
            index = Index("S(?:" + checked + r")\z", _LETTERS)
        except ValueError as error:
            got, said = f"got the pattern {_abbreviate(regex)}", " ".join(str(error).split())
            problem = "in which a part can match no text (for example an empty class); leave that part out"
            if "no transitions" not in said:
                problem = (
                    f"which cannot be used ({said}); allowed: regular expressions in Rust's syntax, without "
                    "look-around, backreferences and word boundaries"
                )
            raise SettingsError(f"{got}, {problem}") from None
        edges = index.get_transitions()
        if len(edges) > MAX_STATES:
            raise SettingsError(
                f"the pattern {_abbreviate(regex)} is too large: {len(edges)} states; allowed: {MAX_STATES}; use fewer "
                "and shorter repetitions, less nesting, or a simpler schema"
            )
        index_of = {edges[index.get_initial_state()][ord("S")]: 0}
        for state in edges:
            index_of.setdefault(state, len(index_of))
        dead = len(index_of)
        transitions = np.full((dead + 1, 256), dead, np.int32)
        accepting = np.zeros(dead + 1, np.bool_)
        for state, targets in edges.items():
            for letter, target in targets.items():
                if letter < 256:  # outlines-core uses 256 as its end-of-text token
                    transitions[index_of[state], letter] = index_of[target]
        accepting[[index_of[state] for state in index.get_final_states()]] = True
        return cls(transitions, accepting)


def normalize_regex(regex: str) -> str:
    r"""The same expression with ASCII classes, and without anchors at its ends.

    A leading ^ and a trailing $ are removed, because the whole text has to match anyway. Anchors elsewhere raise
    SettingsError. \d, \w and \s mean the same as under Python's re.ASCII, because \d rarely stands for all Unicode
    digits (about 700).
    """
    classes = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t-\r "}
    ascii_only = {name: f"[{members}]" for name, members in classes.items()}
    ascii_only |= {name.upper(): f"[^{members}]" for name, members in classes.items()}
    regex = re.sub(r"\\(.)", lambda escape: ascii_only.get(escape[1], escape[0]), regex, flags=re.DOTALL)
    regex = regex.removeprefix("^")
    backslashes = len(regex) - 1 - len(regex[:-1].rstrip("\\"))
    regex = regex[:-1] if regex.endswith("$") and backslashes % 2 == 0 else regex
    if re.search(r"[\^$]|\\[Az]", _NO_ANCHORS.sub("", regex)):
        raise SettingsError(
            f"got the pattern {_abbreviate(regex)}, with an anchor inside; leave anchors out: the whole text has to "
            "match"
        )
    return regex


def _check_syntax(regex: str) -> None:
    """Raises ValueError for an expression that is not valid by itself: "a)|(b" would be valid inside parentheses."""
    try:
        Index(regex, _LETTERS)
    except ValueError as error:
        if "NFA" in str(error):
            raise


def _abbreviate(regex: str) -> str:
    return repr(regex if len(regex) <= 80 else regex[:77] + "...")
