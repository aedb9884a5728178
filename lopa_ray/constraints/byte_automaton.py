"""ByteAutomaton: a regular expression as an automaton over bytes, built by outlines-core.

outlines-core turns expressions into automata over whole vocabularies; here it is given the 256
bytes alone, and `constraint_builder` extends the automaton to tokens, which is faster and far smaller to send.
It is imported in a process of its own, which can be ended when a construction takes too much.
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
"""Processor time that the construction may take."""

MAX_BYTES = 2**30
"""Memory that it may take: `[ab]*a[ab]{30}` has a billion states."""

MAX_STATES = 4000

_NO_ANCHORS = re.compile(r"\\[^Az]|\[\^?\]?(?:\\.?|[^\]\\])*+(?:\]|\Z)", re.DOTALL)
"""Escapes and classes, in which ^ and $ are letters. One that is not closed ends with the text: looking for its
end from every bracket would take for ever."""

# A process of its own, since nothing else can stop a construction that takes too long or too much.
# The leading letter keeps the start state from being special (expressions that match nothing, like a*,
# are refused without it); \z makes the automaton follow all alternatives: outlines-core asks for the
# leftmost-first match, so that a|ab would never match ab. The expression is also read as it stands:
# "a)|(b" is none, but would be one inside of the parentheses.
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
    """Deterministic; state 0 is the start. A byte string matches if it leads to an accepting state."""

    transitions: npt.NDArray[np.int32]
    """[states + 1, 256]: the next state; the last one is where nothing can match any more."""
    accepting: npt.NDArray[np.bool_]
    """[states + 1]."""

    @classmethod
    def from_regex(cls, regex: str, *, trusted: bool = False) -> ByteAutomaton:
        """The automaton of what `regex` (Rust's syntax, Unicode) matches as a whole.

        For what a regular expression of a user means see `normalize_regex`. `trusted`: this project has
        written the expression, so it is neither normalised nor checked by itself. Raises SettingsError for
        what is no regular expression or has look-around, backreferences or word boundaries, for one that
        matches nothing, and for one that is too large.
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
        found = json.loads(built.stdout)
        if "error" in found:
            raise SettingsError(_describe_error(regex, found["error"]))
        if found["states"] > MAX_STATES:
            raise _too_large(regex, f"{found['states']} states; allowed: {MAX_STATES}")
        return cls._from_edges(found["start"], found["final"], found["edges"])

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
                if letter < 256:  # 256 is outlines-core's own sign for the end
                    transitions[index_of[state], letter] = index_of[target]
        accepting[[index_of[state] for state in final]] = True
        return cls(transitions, accepting)


def normalize_regex(regex: str, space: str = r"\t-\r ") -> str:
    r"""The same expression with ASCII classes, and without anchors at its ends.

    A leading ^ and a closing $ say nothing new where the whole text has to match; elsewhere they raise
    SettingsError. \d, \w and \s (`space`) mean what they mean under Python's re.ASCII: few patterns for
    digits are meant for all 700 of Unicode's.
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
            f"got the pattern {_abbreviate(regex)}, of which a part can match no text (an empty class, perhaps); leave "
            "that part out"
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
