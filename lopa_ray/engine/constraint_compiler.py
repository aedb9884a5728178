"""ConstraintCompiler: patterns into constraints, for one tokenizer."""

from __future__ import annotations

from functools import cached_property, lru_cache
from threading import Lock

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.constraint_builder import build_constraint, token_functions
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.tokenizer import Tokenizer

CONSTRAINT_CACHE_SIZE = 16


class ConstraintCompiler:
    """Compiles constraints, one at a time, and caches the last ones."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._compile_cached = lru_cache(CONSTRAINT_CACHE_SIZE)(self._compile)
        self._lock = Lock()

    def compile(self, regex: str, *, trusted: bool = False) -> Constraint:
        """The constraint to texts that `regex` matches as a whole.

        Raises SettingsError for a tokenizer whose tokens are no plain bytes, for what
        `ByteAutomaton.from_regex` refuses, and for what is too large for the vocabulary.
        """
        with self._lock:
            return self._compile_cached(regex, trusted)

    def _compile(self, regex: str, trusted: bool) -> Constraint:
        token_bytes = self._token_bytes  # first: it raises for a tokenizer that cannot serve any pattern
        automaton = ByteAutomaton.from_regex(regex, trusted=trusted)
        function_ids, functions = token_functions(automaton.transitions, token_bytes)
        return build_constraint(function_ids, functions, automaton.accepting, self._vocabulary.eos_token_id)

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """The bytes of every id; empty for what has none: special and added tokens, and padding."""
        tokenizer, size = self._tokenizer, self._vocabulary.size
        if not tokenizer.byte_level:
            raise SettingsError(
                "structured output needs a byte-level tokenizer, whose tokens spell the same bytes wherever they "
                "stand; this checkpoint's is none: leave response_format and guided_* out"
            )
        known = min(size, tokenizer.vocab_size)
        return [tokenizer.regular_token_bytes(token) for token in range(known)] + [b""] * (size - known)
