"""Builds a constraint, which is an automaton over tokens, from an automaton over bytes.

A token is a string of bytes, so it acts on an automaton over bytes as a function from states to states. Tokens with the
same function form one class. The functions are computed byte by byte for all tokens at once. Each combination of a
function and a following byte is computed once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.constraint import Constraint
from lopa_ray.errors import SettingsError

MAX_CELLS = 10_000_000
"""Maximum number of functions times states. It bounds memory (2 bytes per cell) and the time of a step."""

MAX_CLASSES = 2**16
"""Bound on the number of classes: their indices are uint16."""


def token_functions(
    transitions: npt.NDArray[np.int32], token_bytes: list[bytes]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    """The functions of tokens on an automaton with `transitions` int32 [states, 256].

    Returns the index of each token's function, int64 [tokens], and the functions, uint16 [functions, states]. Function
    0 leads every state to the dead state. Tokens without bytes have it too. Raises SettingsError if there are too many
    functions.
    """
    dead = len(transitions) - 1
    columns, byte_classes = np.unique(transitions, axis=1, return_inverse=True)
    byte_functions = np.ascontiguousarray(columns.T).astype(np.uint16)
    functions = [np.full(dead + 1, dead, np.uint16), np.arange(dead + 1, dtype=np.uint16)]
    id_of = {function.tobytes(): index for index, function in enumerate(functions)}

    lengths = np.array([len(text) for text in token_bytes])
    starts = np.cumsum(lengths) - lengths
    classes = byte_classes.reshape(-1)[np.frombuffer(b"".join(token_bytes), np.uint8)]
    function_ids = (lengths > 0).astype(np.int64)
    for at in range(int(lengths.max(initial=0))):
        live = np.flatnonzero((lengths > at) & (function_ids != 0))
        keys = function_ids[live] * len(byte_functions) + classes[starts[live] + at]
        pairs, pair_of = np.unique(keys, return_inverse=True)
        composed_ids = np.empty(len(pairs), np.int64)
        for index, (function, byte_class) in enumerate(
            zip(*np.divmod(pairs, len(byte_functions)), strict=True)
        ):
            composed = byte_functions[byte_class][functions[function]]
            composed_ids[index] = id_of.setdefault(composed.tobytes(), len(functions))
            if composed_ids[index] == len(functions):
                functions.append(composed)
        if len(functions) * (dead + 1) > MAX_CELLS:
            raise SettingsError(
                f"the pattern is too large for this vocabulary: {len(functions)} ways for a token to lead "
                f"through {dead} states; use fewer and shorter repetitions, or a simpler schema"
            )
        function_ids[live] = composed_ids[pair_of.reshape(-1)]
    return function_ids, np.stack(functions)


def build_constraint(
    function_ids: npt.NDArray[np.int64],
    functions: npt.NDArray[np.uint16],
    accepting: npt.NDArray[np.bool_],
    eos_token_id: int,
) -> Constraint:
    """The constraint that accepts a match, followed by EOS up to the end of the answer.

    `function_ids` int64 [tokens] and `functions` uint16 [functions, states] are those of `token_functions`.
    `accepting` bool [states] says in which states a match may end. Raises SettingsError for too many classes of tokens.
    """
    used, token_classes = np.unique(function_ids, return_inverse=True)
    token_classes = token_classes.reshape(-1)
    if len(used) >= MAX_CLASSES:
        raise SettingsError(
            f"the pattern is too large for this vocabulary: {len(used)} classes of tokens; allowed: "
            f"{MAX_CLASSES - 1}; use a simpler pattern or schema"
        )
    # The state after EOS comes between the states of the byte automaton and the dead state.
    after_eos = functions.shape[1] - 1
    dead = after_eos + 1
    transitions = np.full((len(used) + 1, dead + 1), dead, np.uint16)
    transitions[:-1, :after_eos] = functions[used][:, :after_eos]
    # The byte automaton's dead state has the index that the state after EOS has here.
    transitions[:-1, :after_eos][transitions[:-1, :after_eos] == after_eos] = dead
    transitions[-1, :after_eos][accepting[:after_eos]] = after_eos
    transitions[-1, after_eos] = after_eos
    token_classes[eos_token_id] = len(used)
    accepting = np.append(accepting[:after_eos], [True, False])
    return Constraint(token_classes.astype(np.uint16), transitions, accepting, eos_token_id)
