"""Builds a constraint, which is an automaton over tokens, from an automaton over bytes.

A token acts on the states of an automaton over bytes as a function. Tokens with the same function form one class. The
functions are computed byte by byte for all tokens at once, and each with a following byte once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.automaton_operations import byte_classes
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.transition_table import Function, TransitionTable
from lopa_ray.errors import SettingsError

# States from which functions lead somewhere, of all functions: some 12 bytes for each, and the time of a step.
MAX_TRANSITIONS = 10_000_000
MAX_CLASSES = 2**16  # their indices are uint16


def build_constraint(
    automaton: ByteAutomaton,
    token_bytes: Sequence[bytes],
    eos_token_id: int,
    *,
    neutral: Sequence[int] = (),
    num_neutral_states: int = 0,
) -> Constraint:
    """The constraint that accepts a match, followed by EOS up to the end of the answer. `token_bytes` [vocabulary]: the
    bytes of each token. `neutral` tokens are allowed in the first `num_neutral_states` states, and change none. Raises
    SettingsError for too many functions or classes of tokens."""
    function_ids, functions = _token_functions(automaton.transitions, token_bytes)
    same = np.arange(num_neutral_states, dtype=np.uint16)
    function_ids[list(neutral)] = len(functions)
    after_eos = len(automaton.accepting) - 1  # in place of the byte automaton's dead state
    function_ids[eos_token_id] = len(functions) + 1
    ends = np.append(np.flatnonzero(automaton.accepting), after_eos).astype(np.uint16)
    functions += [(same, same), (ends, np.full(len(ends), after_eos, np.uint16))]
    used, token_classes = np.unique(function_ids, return_inverse=True)
    if len(used) >= MAX_CLASSES:
        raise SettingsError(
            f"the pattern is too large for this vocabulary: {len(used)} classes of tokens; allowed: "
            f"{MAX_CLASSES - 1}; use a simpler pattern or schema"
        )
    table = TransitionTable.of_functions(after_eos + 1, [functions[index] for index in used])
    accepting = np.append(automaton.accepting[:after_eos], True)
    return Constraint(token_classes.reshape(-1).astype(np.uint16), table, accepting, eos_token_id)


def _token_functions(
    transitions: npt.NDArray[np.int32], token_bytes: Sequence[bytes]
) -> tuple[npt.NDArray[np.int64], list[Function]]:
    """The index of each token's function, int64 [tokens], and the functions. Function 0, also of tokens without bytes,
    leads nowhere."""
    dead = len(transitions) - 1
    columns, class_of_byte = byte_classes(transitions)
    byte_targets = np.ascontiguousarray(columns.T).astype(np.uint16)
    everywhere = np.arange(dead, dtype=np.uint16)
    functions: list[Function] = [(everywhere[:0], everywhere[:0]), (everywhere, everywhere)]
    id_of = {_key(function): index for index, function in enumerate(functions)}

    lengths = np.array([len(text) for text in token_bytes])
    starts = np.cumsum(lengths) - lengths
    classes = class_of_byte[np.frombuffer(b"".join(token_bytes), np.uint8)]
    function_ids = (lengths > 0).astype(np.int64)
    size = 0
    for at in range(int(lengths.max(initial=0))):
        live = np.flatnonzero((lengths > at) & (function_ids != 0))
        keys = function_ids[live] * len(byte_targets) + classes[starts[live] + at]
        pairs, pair_of = np.unique(keys, return_inverse=True)
        composed_ids = np.empty(len(pairs), np.int64)
        for index, pair in enumerate(pairs):
            function, byte_class = divmod(pair, len(byte_targets))
            sources, reached = functions[function]
            targets = byte_targets[byte_class][reached]
            alive = targets != dead
            composed = (sources[alive], targets[alive])
            composed_ids[index] = id_of.setdefault(_key(composed), len(functions))
            if composed_ids[index] == len(functions):
                functions.append(composed)
                size += len(composed[0])
                if size > MAX_TRANSITIONS:
                    raise SettingsError(
                        f"the pattern is too large for this vocabulary: more than {MAX_TRANSITIONS} ways for a token "
                        f"to lead through {dead} states; use fewer and shorter repetitions, or a simpler schema"
                    )
        function_ids[live] = composed_ids[pair_of.reshape(-1)]
    return function_ids, functions


def _key(function: Function) -> tuple[bytes, bytes]:
    return function[0].tobytes(), function[1].tobytes()
