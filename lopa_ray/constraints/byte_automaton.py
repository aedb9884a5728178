"""ByteAutomaton: a regular expression as an automaton over bytes, built by outlines-core.

outlines-core can build automata over whole vocabularies. Here its vocabulary is the 256 bytes, and
`constraint_builder` extends the automaton to tokens. This is faster, and the result is much smaller to send.
outlines-core runs in a separate process, which can be ended when a construction takes too much time or memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa_ray.errors import SettingsError

MAX_SECONDS = 5
"""Maximum CPU time of a construction, in seconds."""

MAX_BYTES = 2**30
"""Maximum memory of a construction, in bytes. For example, `[ab]*a[ab]{30}` has a billion states."""

MAX_STATES = 4000
"""Maximum number of states of an automaton."""

_NO_ANCHORS = re.compile(r"\\[^Az]|\[\^?\]?(?:\\.?|[^\]\\])*+(?:\]|\Z)", re.DOTALL)
"""Matches escapes and character classes, in which ^ and $ are not anchors.

A class that is not closed extends to the end of the text. Otherwise the search for its end from every bracket would
take quadratic time.
"""

# This program runs in a separate process, because a construction that takes too long or too much memory cannot be
# stopped otherwise. The leading letter S is added because outlines-core rejects expressions that match the empty text,
# such as a*. The trailing \z is added because outlines-core uses leftmost-first matching, under which a|ab never
# matches ab; with \z the automaton follows all alternatives. With "check" the expression is also parsed by itself:
# "a)|(b" is not a valid expression, but would be valid inside the added parentheses.
_BUILD = r"""
import json, resource, sys
from outlines_core import Index, Vocabulary
limits = json.loads(sys.argv[1])
if sys.platform == "linux":
    resource.setrlimit(resource.RLIMIT_AS, (limits["bytes"], limits["bytes"]))
resource.setrlimit(resource.RLIMIT_CPU, (limits["seconds"], limits["seconds"]))
regex = json.loads(sys.stdin.read())
letters = Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
try:
    if limits["check"]:
        try:
            Index(regex, letters)
        except ValueError as error:
            if "NFA" in str(error):
                raise
    index = Index("S(?:" + regex + r")\z", letters)
    edges = index.get_transitions()
    result = {"states": len(edges)}
    if len(edges) <= limits["states"]:
        result["start"] = edges[index.get_initial_state()][ord("S")]
        result["final"] = sorted(index.get_final_states())
        result["edges"] = [[state, list(to), list(to.values())] for state, to in edges.items()]
except ValueError as error:
    result = {"error": str(error)}
print(json.dumps(result))
"""


@dataclass(frozen=True, slots=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton. State 0 is the start. A byte string matches if it leads to an accepting state."""

    transitions: npt.NDArray[np.int32]
    """int32 [states + 1, 256]: the next state. The last state is the dead state, from which no match is possible."""
    accepting: npt.NDArray[np.bool_]
    """Bool [states + 1]: whether a state is accepting."""

    @classmethod
    def from_regex(cls, regex: str, *, trusted: bool = False) -> ByteAutomaton:
        """The automaton of all texts that `regex` matches as a whole. The syntax is that of Rust, with Unicode.

        A user's expression is first normalised by `normalize_regex`. With `trusted`, the expression comes from this
        project, and it is neither normalised nor checked by itself. Raises SettingsError for an invalid expression, for
        look-around, backreferences and word boundaries, for an expression of which a part matches no text, and for one
        that is too large.
        """
        limits = {"bytes": MAX_BYTES, "seconds": MAX_SECONDS, "states": MAX_STATES, "check": not trusted}
        built = subprocess.run(
            [sys.executable, "-P", "-c", _BUILD, json.dumps(limits)],
            input=json.dumps(regex if trusted else normalize_regex(regex)),
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            if built.returncode > 0 and "MemoryError" not in built.stderr:
                raise SettingsError(
                    f"outlines-core failed on {_abbreviate(regex)}: {built.stderr.strip()[-300:]}"
                )
            raise _too_large(regex, f"more than {MAX_SECONDS} s or {MAX_BYTES >> 30} GiB to build")
        automaton = json.loads(built.stdout)
        if "error" in automaton:
            raise SettingsError(_describe_error(regex, automaton["error"]))
        if automaton["states"] > MAX_STATES:
            raise _too_large(regex, f"{automaton['states']} states; allowed: {MAX_STATES}")
        return cls._from_edges(automaton["start"], automaton["final"], automaton["edges"])

    @classmethod
    def _from_edges(
        cls, start: int, final: list[int], edges: list[tuple[int, list[int], list[int]]]
    ) -> ByteAutomaton:
        index_of = {start: 0}
        for state, _, _ in edges:
            index_of.setdefault(state, len(index_of))
        dead = len(index_of)
        transitions = np.full((dead + 1, 256), dead, np.int32)
        accepting = np.zeros(dead + 1, np.bool_)
        for state, letters, targets in edges:
            for letter, target in zip(letters, targets, strict=True):
                if letter < 256:  # outlines-core uses 256 as its end-of-text token
                    transitions[index_of[state], letter] = index_of[target]
        accepting[[index_of[state] for state in final]] = True
        return cls(transitions, accepting)


def normalize_regex(regex: str, space: str = r"\t-\r ") -> str:
    r"""The same expression with ASCII classes, and without anchors at its ends.

    A leading ^ and a trailing $ are removed, because the whole text has to match anyway. Anchors elsewhere raise
    SettingsError. \d, \w and \s mean the same as under Python's re.ASCII, because \d rarely stands for all Unicode
    digits (about 700). `space` holds the members of \s.
    """
    classes = {"d": "0-9", "w": "0-9A-Za-z_", "s": space}
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


def _describe_error(regex: str, error: str) -> str:
    if "no transitions" in error:
        return (
            f"got the pattern {_abbreviate(regex)}, in which a part can match no text (for example an empty class); "
            "leave that part out"
        )
    return (
        f"got the pattern {_abbreviate(regex)}, which cannot be used ({' '.join(error.split())}); allowed: regular "
        "expressions in Rust's syntax, without look-around, backreferences and word boundaries"
    )


def _too_large(regex: str, got: str) -> SettingsError:
    return SettingsError(
        f"the pattern {_abbreviate(regex)} is too large: {got}; use fewer and shorter repetitions, less nesting, "
        "or a simpler schema"
    )


def _abbreviate(regex: str) -> str:
    return repr(regex if len(regex) <= 80 else regex[:77] + "...")
