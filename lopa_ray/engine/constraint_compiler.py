"""ConstraintCompiler: patterns into constraints, for one tokenizer.

A token is a string of bytes, so it acts on an automaton over bytes as a function from states to
states. Tokens that act alike are one class. The functions are found byte by byte for all tokens at
once, and a function followed by a byte is computed once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from threading import Lock

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.tokenizer import Tokenizer

MAX_CELLS = 10_000_000
"""Functions times states: bounds memory (two bytes each), and the time of every step that looks at them all."""

MAX_CLASSES = 2**16

MAX_CACHED_CONSTRAINTS = 16


class ConstraintCompiler:
    """Compiles constraints, one at a time, and caches the last ones."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._cached_constraint = lru_cache(MAX_CACHED_CONSTRAINTS)(self._constraint)
        self._lock = Lock()

    def constraint(self, regex: str, *, trusted: bool = False) -> Constraint:
        """The constraint to texts that `regex` matches as a whole.

        Raises SettingsError for a tokenizer whose tokens are no plain bytes, for what
        `ByteAutomaton.from_regex` refuses, and for what is too large for the vocabulary.
        """
        with self._lock:
            return self._cached_constraint(regex, trusted)

    def _constraint(self, regex: str, trusted: bool) -> Constraint:
        texts = self._texts
        automaton = ByteAutomaton.from_regex(regex, trusted=trusted)
        functions, states = token_functions(automaton.table, texts)
        return tie(functions, states, automaton.accepting, self._vocabulary.eos_token_id)

    @cached_property
    def _texts(self) -> list[bytes]:
        """The bytes of every id; empty for what has none: special and added tokens, and padding."""
        tokenizer, size = self._tokenizer, self._vocabulary.size
        if not tokenizer.byte_level:
            raise SettingsError(
                "structured output needs a byte-level tokenizer, whose tokens spell the same bytes wherever they "
                "stand; this checkpoint's is none: leave response_format and guided_* out"
            )
        known = min(size, tokenizer.vocab_size)
        return [tokenizer.plain_bytes(token) for token in range(known)] + [b""] * (size - known)


def token_functions(
    table: npt.NDArray[np.int32], texts: list[bytes]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    """How tokens act on an automaton: the function of each token [tokens], and the functions [functions, states].

    Function 0 leads nowhere; it is that of tokens without text too. Raises SettingsError if there are too many.
    """
    dead = len(table) - 1
    columns, letter_of = np.unique(table, axis=1, return_inverse=True)
    steps = np.ascontiguousarray(columns.T).astype(np.uint16)
    functions = [np.full(dead + 1, dead, np.uint16), np.arange(dead + 1, dtype=np.uint16)]
    numbers = {function.tobytes(): number for number, function in enumerate(functions)}

    lengths = np.array([len(text) for text in texts])
    starts = np.cumsum(lengths) - lengths
    letters = letter_of.reshape(-1)[np.frombuffer(b"".join(texts), np.uint8)]
    acts = (lengths > 0).astype(np.int64)
    for at in range(int(lengths.max(initial=0))):
        live = np.flatnonzero((lengths > at) & (acts != 0))
        pairs, which = np.unique(acts[live] * len(steps) + letters[starts[live] + at], return_inverse=True)
        result = np.empty(len(pairs), np.int64)
        for index, (function, letter) in enumerate(zip(*np.divmod(pairs, len(steps)), strict=True)):
            composed = steps[letter][functions[function]]
            number = numbers.setdefault(composed.tobytes(), len(functions))
            if number == len(functions):
                functions.append(composed)
            result[index] = number
        if len(functions) * (dead + 1) > MAX_CELLS:
            raise SettingsError(
                f"the pattern is too large for this vocabulary: {len(functions)} ways for a token to lead "
                f"through {dead} states; use fewer and shorter repetitions, or a simpler schema"
            )
        acts[live] = result[which.reshape(-1)]
    return acts, np.stack(functions)


def tie(
    acts: npt.NDArray[np.int64],
    functions: npt.NDArray[np.uint16],
    accepting: npt.NDArray[np.bool_],
    eos_token_id: int,
) -> Constraint:
    """The constraint of token functions: a match, then EOS to the end.

    Raises SettingsError for too many classes of tokens.
    """
    used, classes = np.unique(acts, return_inverse=True)
    classes = classes.reshape(-1)
    if len(used) >= MAX_CLASSES:
        raise SettingsError(
            f"the pattern is too large for this vocabulary: {len(used)} classes of tokens; allowed: "
            f"{MAX_CLASSES - 1}; use a simpler pattern or schema"
        )
    dead = functions.shape[1] - 1
    # The state after EOS comes between the automaton's own and the dead one.
    ended, nowhere = dead, dead + 1
    table = np.full((len(used) + 1, nowhere + 1), nowhere, np.uint16)
    table[:-1, :dead] = functions[used][:, :dead]
    table[:-1, :dead][table[:-1, :dead] == dead] = nowhere
    table[-1, :dead][accepting[:dead]] = ended
    table[-1, ended] = ended
    classes[eos_token_id] = len(used)
    good = np.append(accepting[:dead], [True, False])
    return Constraint(classes.astype(np.uint16), table, good, eos_token_id)
